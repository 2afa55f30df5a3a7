"""Helpers for tests of graphs: states of nodes, error codes, handles of nodes, and tasks."""

from __future__ import annotations

from typing import Any

from holdfast import Graph, Holdfast, Retry, Run
from holdfast.task.conditions import Node
from tests.support.durable import drain
from tests.support.ledger import Ledger

ONCE = Retry(max_attempts=1)
OVERDUE = '{"code":"deadline","type":"Deadline","message":"too late"}'


def states(run: Run[Any]) -> dict[str, str]:
    return {name: info.state for name, info in run.nodes().items()}


def codes(run: Run[Any]) -> dict[str, str]:
    """Return the error code of each node that failed or was skipped."""
    return {name: info.error.code for name, info in run.nodes().items() if info.error is not None}


def node(app: Holdfast, run: Run[Any], name: str) -> Run[Any]:
    """Return the run of a node."""
    return app.get_run(run.nodes()[name].id)


def submitted(app: Holdfast, graph: Graph, result: Node[Any] | None = None) -> Run[Any]:
    """Submit a graph and run a worker until nothing is ready; return its run."""
    run = app.submit(graph, result=result)
    drain(app)
    return run


def time_out(app: Holdfast) -> None:
    """End everything whose deadline has passed, as the timer loop of a worker does."""
    app.store.timers.fail_overdue(OVERDUE)


class Tasks:
    """Tasks for nodes. Each call writes a line to the ledger."""

    def __init__(self, app: Holdfast, ledger: Ledger) -> None:
        @app.task(name="give")
        def give(value: Any = None) -> Any:
            ledger.write("give", value)
            return value

        @app.task(name="fail", retry=ONCE)
        def fail(message: str = "broken") -> Any:
            """Fail until the test calls `well`."""
            ledger.write("fail", message)
            if not ledger.path.with_name("well").exists():
                raise ValueError(message)
            return message

        self.give = give
        self.fail = fail
        self._ledger = ledger

    def well(self) -> None:
        """Let tasks succeed from now on."""
        self._ledger.path.with_name("well").touch()
