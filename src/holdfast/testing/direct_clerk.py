"""What direct calls of durable functions have instead of an app: runs that stand for requests, payloads as they are."""

from __future__ import annotations

from typing import Any, NoReturn
from uuid import UUID

from holdfast.errors import TaskError
from holdfast.model.ids import new_id
from holdfast.model.payloads import Payloads
from holdfast.store import NewRun
from holdfast.task.task import Request

PLAINLY = Payloads(warn_above=None, compress_above=None)
"""Nothing is stored, so nothing is compressed."""


class DirectRun:
    """A run that a direct call made: it can be joined, and nothing else."""

    def __init__(self, id: UUID, task: str) -> None:
        self.id = id
        self.task = task

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise TaskError(f"a run made in a direct call has no .{name}: it isn't in any store; use the kit for that")

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.task}>"


class DirectClerk:
    """Makes runs of requests, to be called here."""

    def __init__(self) -> None:
        self.requests: dict[str, Request[Any]] = {}

    def new_run(self, request: Request[Any]) -> NewRun:
        run = NewRun(str(new_id()), request.declaration.queue, request.task, request.args, 0)
        self.requests[run.id] = request
        return run

    def new_child_graph(self, plan: Any, result: str | None) -> NoReturn:  # noqa: ARG002
        raise TaskError("ctx.submit needs a store: test functions that submit graphs with the kit")

    def pack(self, text: str, what: str) -> str:
        return PLAINLY.pack(text, what)

    def unpack(self, text: str) -> str:
        return PLAINLY.unpack(text)

    def trace(self) -> str | None:
        return None

    def handle(self, id: UUID, task: str) -> DirectRun:
        return DirectRun(id, task)

    def decode_result(self, task: str, text: str) -> Any:
        known = (request.signature for request in self.requests.values() if request.task == task)
        return next(known).decode_result(text)

    def ended(self) -> None:
        """Nobody waits for it."""
