"""Short words for tests of graphs: how their nodes are, why some were skipped, a handle of one of them."""

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
    """The code of the error of each node that has one: why it failed or was skipped."""
    return {name: info.error.code for name, info in run.nodes().items() if info.error is not None}


def node(app: Holdfast, run: Run[Any], name: str) -> Run[Any]:
    """The run of a node."""
    return app.get_run(run.nodes()[name].id)


def submitted(app: Holdfast, graph: Graph, result: Node[Any] | None = None) -> Run[Any]:
    """A graph that has been worked on until nothing was ready."""
    run = app.submit(graph, result=result)
    drain(app)
    return run


def time_out(app: Holdfast) -> None:
    """What is past its time ends, as a worker's timekeeper would see to it."""
    app.store.timers.fail_overdue(OVERDUE)


class Tasks:
    """Tasks for nodes. Each call is a line of the ledger."""

    def __init__(self, app: Holdfast, ledger: Ledger) -> None:
        @app.task(name="give")
        def give(value: Any = None) -> Any:
            ledger.write("give", value)
            return value

        @app.task(name="fail", retry=ONCE)
        def fail(message: str = "broken") -> Any:
            """Fails until the test says that all is well."""
            ledger.write("fail", message)
            if not ledger.path.with_name("well").exists():
                raise ValueError(message)
            return message

        self.give = give
        self.fail = fail
        self._ledger = ledger

    def well(self) -> None:
        """From now on nothing fails."""
        self._ledger.path.with_name("well").touch()
