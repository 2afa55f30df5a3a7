"""What plans need of the application's side and of the store, to be read without knowing either."""

from __future__ import annotations

from typing import Any, Protocol
from uuid import UUID

from holdfast.store import NewRun
from holdfast.store.rows import NewGraph


class Clerk(Protocol):
    """What the application's side does for runs: turns requests into rows, and rows into what authors see."""

    def new_run(self, request: Any) -> NewRun: ...

    def new_child_graph(self, plan: Any, result: str | None) -> tuple[NewRun, NewGraph]: ...

    def pack(self, text: str, what: str) -> str:
        """A payload as it is stored."""

    def unpack(self, text: str) -> str:
        """A stored payload as JSON."""

    def trace(self) -> str | None:
        """The trace context of the code that asks, as it is kept with what it makes."""

    def handle(self, id: UUID, task: str) -> Any: ...

    def decode_result(self, task: str, text: str) -> Any: ...

    def ended(self) -> None:
        """Runs have ended, perhaps: whoever waits for one in this process may look."""


class Reader(Protocol):
    """How children ended. Blocking."""

    def spawned(self, parent: str) -> dict[str, Any]: ...

    def children(self, parent: str, spawn_key: str) -> list[Any]: ...
