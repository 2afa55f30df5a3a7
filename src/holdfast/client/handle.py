"""The handle of a run: its id, and the verbs on it. Holds no state of the run; every verb asks the database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast
from uuid import UUID

from holdfast.model.blocking_calls import reject_in_event_loop, run_in_thread
from holdfast.model.clock import Duration
from holdfast.model.history import Entry
from holdfast.model.run import Chunk, RunInfo

if TYPE_CHECKING:
    from holdfast.client.client import Client
    from holdfast.client.graphs import Gate
    from holdfast.task.graph import Graph

R_co = TypeVar("R_co", covariant=True)


class Run(Generic[R_co]):
    """One durable execution. Two handles of the same run are equal."""

    __slots__ = ("_client", "_id", "task")

    def __init__(self, id: UUID | str, task: str, client: Client) -> None:
        self._id = id  # as text where many are made: few of those are looked at
        self.task = task
        self._client = client

    @property
    def id(self) -> UUID:
        """The run's id."""
        if isinstance(self._id, str):
            self._id = UUID(self._id)
        return self._id

    def info(self) -> RunInfo[R_co]:
        """The run as it is now."""
        reject_in_event_loop("info")
        return self._client.info(self.id)

    async def ainfo(self) -> RunInfo[R_co]:
        """The run as it is now."""
        return await run_in_thread(self._client.info, self.id)

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the end: the result, or RunFailed, RunCancelled, or ResultTimeout after `timeout`."""
        reject_in_event_loop("result")
        return cast(R_co, self._client.result(self.id, self.task, timeout))

    async def aresult(self, timeout: Duration | None = None) -> R_co:
        """Wait for the end: the result, or RunFailed, RunCancelled, or ResultTimeout after `timeout`."""
        return cast(R_co, await self._client.aresult(self.id, self.task, timeout))

    def cancel(self, reason: str | None = None) -> bool:
        """End the run now; True when this call ended it, False when it had ended before. A worker that is at it can
        write nothing more about it from this moment on, and is stopped at its next heartbeat."""
        reject_in_event_loop("cancel")
        return self._client.cancel(self.id, reason)

    async def acancel(self, reason: str | None = None) -> bool:
        """End the run now; True when this call ended it, False when it had ended before."""
        return await run_in_thread(self._client.cancel, self.id, reason)

    def retry(self) -> None:
        """Send a failed or cancelled run back to ready, with new budgets. An unfinished run is left as it is; a done
        one raises RunFinished."""
        reject_in_event_loop("retry")
        self._client.retry(self.id)

    async def aretry(self) -> None:
        """Send a failed or cancelled run back to ready, with new budgets."""
        await run_in_thread(self._client.retry, self.id)

    def fork(self, from_step: str | None = None, args: tuple[Any, ...] | None = None) -> Run[R_co]:
        """A new run with the checkpoints that this one made before a step, which is named as in the code or by its key;
        without one it begins at the beginning. `args`: other arguments."""
        reject_in_event_loop("fork")
        return self._client.fork(self.id, self.task, from_step, args)

    async def afork(self, from_step: str | None = None, args: tuple[Any, ...] | None = None) -> Run[R_co]:
        """A new run with the checkpoints that this one made before a step."""
        return await run_in_thread(self._client.fork, self.id, self.task, from_step, args)

    def send(self, topic: str, payload: Any = None) -> None:
        """Send the run a message, which `ctx.receive` gets: in order, once. RunFinished when it has ended."""
        reject_in_event_loop("send")
        self._client.send(self.id, topic, payload)

    async def asend(self, topic: str, payload: Any = None) -> None:
        """Send the run a message, which `ctx.receive` gets: in order, once. RunFinished when it has ended."""
        await run_in_thread(self._client.send, self.id, topic, payload)

    def stream(self, after: int = 0) -> Iterator[Chunk]:
        """Follow what the run writes with `ctx.write`, from behind the piece `after`, until it ends."""
        reject_in_event_loop("stream")
        return self._client.stream(self.id, after)

    def astream(self, after: int = 0) -> AsyncIterator[Chunk]:
        """Follow what the run writes with `ctx.write`, from behind the piece `after`, until it ends."""
        return self._client.astream(self.id, after)

    def nodes(self) -> dict[str, RunInfo[Any]]:
        """The nodes of a graph, each a run of its own, by their names. GraphError on other runs."""
        reject_in_event_loop("nodes")
        return self._client.graphs.nodes(self.id)

    async def anodes(self) -> dict[str, RunInfo[Any]]:
        """The nodes of a graph, each a run of its own, by their names. GraphError on other runs."""
        return await run_in_thread(self._client.graphs.nodes, self.id)

    def gate(self, name: str) -> Gate:
        """A gate of a graph, to complete it or let it fail."""
        return self._client.graphs.gate(self.id, name)

    def append(self, graph: Graph, *, key: str) -> None:
        """Add nodes to an unfinished graph, once: the same nodes with the same key again change nothing, others raise
        KeyConflict. They may need nodes of the run: `graph.node(name)`."""
        reject_in_event_loop("append")
        self._client.graphs.append(self.id, graph, key)

    async def aappend(self, graph: Graph, *, key: str) -> None:
        """Add nodes to an unfinished graph, once."""
        await run_in_thread(self._client.graphs.append, self.id, graph, key)

    def history(self) -> list[Entry]:
        """The durable record, complete from enqueue to end."""
        reject_in_event_loop("history")
        return self._client.history(self.id)

    async def ahistory(self) -> list[Entry]:
        """The durable record, complete from enqueue to end."""
        return await run_in_thread(self._client.history, self.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.task}>"
