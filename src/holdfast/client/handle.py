"""`Run`: the handle of a run. It holds the run's id and no state; every method queries the database."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, overload
from uuid import UUID

from holdfast.errors import RunNotFound
from holdfast.model.blocking_calls import run_in_thread
from holdfast.model.clock import Duration
from holdfast.model.explanation import Reason
from holdfast.model.history import HistoryEntry
from holdfast.model.run import Chunk, RunInfo
from holdfast.model.run_logs import LogLevel, LogPage
from holdfast.model.stream_urls import DEFAULT_EXPIRY, stream_url
from holdfast.model.type_variables import R_co
from holdfast.task.scope import reject_in_event_loop

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from holdfast.client.client import Client
    from holdfast.client.graphs import Gate
    from holdfast.task.graph import Graph


T = TypeVar("T")


class Run(Generic[R_co]):
    """A handle of one run, returned by `enqueue`, `submit` and `app.get_run`.

    A handle is cheap and holds no state: every method reads or writes the database. Two handles of the same run are
    equal. Methods that start with `a` are awaitable; the others block and raise `BlockingCall` inside an event loop.

    Example:
        ```python
        run = charge.enqueue(order_id)
        print(run.info().state)
        receipt = run.result(timeout=30)
        ```

    Attributes:
        task: The name of the run's task.
        created: Whether the call that returned this handle created the run. False if the run existed before: it has the
            same `key` or `unique` name, or the handle is from `app.get_run`.
    """

    __slots__ = ("_client", "_id", "created", "task")

    def __init__(self, id: UUID | str, task: str, client: Client, created: bool = False) -> None:
        self._id = id  # Text after a bulk enqueue: parsing is postponed, because few of those ids are ever read.
        self.task = task
        self.created = created
        self._client = client

    @property
    def id(self) -> UUID:
        """The run's id."""
        if isinstance(self._id, str):
            self._id = UUID(self._id)
        return self._id

    def info(self) -> RunInfo[R_co]:
        """Return the current state of the run.

        Raises:
            RunNotFound: The run has been pruned. A `key` outlives its run, so `enqueue` may return such a handle.
        """
        reject_in_event_loop("info")
        with self._explain_pruned():
            return self._client.info(self.id)

    async def ainfo(self) -> RunInfo[R_co]:
        """Return the current state of the run. The awaitable form of `info`."""
        with self._explain_pruned():
            return await run_in_thread(self._client.info, self.id)

    def result(self, timeout: Duration | None = None) -> R_co:
        """Wait for the run to finish and return its result.

        Args:
            timeout: How long to wait, in seconds or as a `timedelta`. None waits forever. The run itself continues
                after a timeout.

        Raises:
            RunFailed: The run failed.
            RunCancelled: The run was cancelled.
            ResultTimeout: The run did not finish within `timeout`.
            RunNotFound: The run has been pruned, and its result with it.
        """
        reject_in_event_loop("result")
        with self._explain_pruned():
            return cast(R_co, self._client.results.result(self.id, self.task, timeout))

    async def aresult(self, timeout: Duration | None = None) -> R_co:
        """Wait for the run to finish and return its result. The awaitable form of `result`."""
        with self._explain_pruned():
            return cast(R_co, await self._client.results.aresult(self.id, self.task, timeout))

    @contextmanager
    def _explain_pruned(self) -> Iterator[None]:
        """Say why the run is missing: a run that existed before the call can only have been pruned."""
        try:
            yield
        except RunNotFound:
            if self.created:
                raise
            raise RunNotFound(
                f"run {self.id} finished earlier and has been pruned: idempotency keys are kept longer than runs"
                " (see keep= and keep_keys=)"
            ) from None

    def cancel(self, reason: str | None = None, *, by: str | None = None, connection: object = None) -> bool:
        """Cancel the run.

        From this moment on a worker that is running it can't record anything more, and it stops the task's code soon
        after. Child runs are cancelled too, and registered compensations run.

        Args:
            reason: Stored with the run.
            by: Who cancels it, for the history.
            connection: A connection of yours, to cancel it in its transaction.

        Returns:
            True if this call cancelled the run, False if it had already finished: then it doesn't run any more anyway.
        """
        return self._client.calling("cancel", connection, lambda given: self._client.cancel(self.id, reason, by, given))

    async def acancel(self, reason: str | None = None, *, by: str | None = None, connection: object = None) -> bool:
        """Cancel the run. The awaitable form of `cancel`."""
        client = self._client
        return await client.acalling("cancel", connection, lambda given: client.cancel(self.id, reason, by, given))

    def retry(
        self,
        *,
        args: tuple[Any, ...] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> bool:
        """Return a failed or cancelled run to `ready`, with its retry and crash counts reset.

        A durable function continues after its recorded results. With other arguments it starts over instead: recorded
        results don't count any more, and its children stay as they ended.

        Args:
            args: Positional arguments to run with from now on. With `args` or `kwargs`, they replace all arguments.
            kwargs: Keyword arguments to run with from now on.
            by: Who retries it, for the history.

        Returns:
            True if this call retried the run, False if it is unfinished: then it runs anyway.

        Raises:
            RunFinished: The run succeeded, so that there is nothing to retry.
            RunStarted: The run is unfinished, so that it can't get other arguments.
            BadArguments: The arguments don't match the function's parameters.
        """
        reject_in_event_loop("retry")
        return self._client.retry(self.id, self.task, args, kwargs, by)

    async def aretry(
        self,
        *,
        args: tuple[Any, ...] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        by: str | None = None,
    ) -> bool:
        """Return a failed or cancelled run to `ready`. The awaitable form of `retry`."""
        return await run_in_thread(self._client.retry, self.id, self.task, args, kwargs, by)

    def update(
        self,
        *,
        priority: int | None = None,
        run_at: datetime | None = None,
        args: tuple[Any, ...] | None = None,
        tags: Sequence[str] | None = None,
        by: str | None = None,
    ) -> None:
        """Change the run while it hasn't started. What isn't given stays as it is.

        Of a run that has started, only `run_at` can be changed: the time of a scheduled retry, or the end of
        `ctx.sleep` if the function waits for nothing else.

        Args:
            priority: Runs with a higher priority are claimed first.
            run_at: When it starts or continues at the earliest. A time in the past means soon.
            args: Its arguments, all of them. The keys and costs of its limits follow from them.
            tags: Its tags.
            by: Who changes it. Recorded in the history.

        Raises:
            RunStarted: The run has started.
            RunFinished: The run has finished.
        """
        reject_in_event_loop("update")
        self._client.update(self.id, self.task, _given(priority, run_at, tags), args, by)

    async def aupdate(
        self,
        *,
        priority: int | None = None,
        run_at: datetime | None = None,
        args: tuple[Any, ...] | None = None,
        tags: Sequence[str] | None = None,
        by: str | None = None,
    ) -> None:
        """Change the run while it hasn't started. The awaitable form of `update`."""
        await run_in_thread(self._client.update, self.id, self.task, _given(priority, run_at, tags), args, by)

    def pause(self, *, by: str | None = None) -> bool:
        """Pause the run and its unfinished children: no worker claims them until they are resumed.

        A job that is running continues to the end of its attempt. A durable function continues to the end of its
        current step.

        Args:
            by: Who paused it. Recorded in the history.

        Returns:
            False if it was paused already.

        Raises:
            RunFinished: The run has finished.
        """
        reject_in_event_loop("pause")
        return self._client.pause(self.id, by)

    async def apause(self, *, by: str | None = None) -> bool:
        """Pause the run and its unfinished children. The awaitable form of `pause`."""
        return await run_in_thread(self._client.pause, self.id, by)

    def resume(self, *, by: str | None = None) -> bool:
        """Resume the paused run and its children. False if it wasn't paused."""
        reject_in_event_loop("resume")
        return self._client.resume(self.id, by)

    async def aresume(self, *, by: str | None = None) -> bool:
        """Resume the paused run and its children. The awaitable form of `resume`."""
        return await run_in_thread(self._client.resume, self.id, by)

    def fork(
        self,
        from_step: str | None = None,
        args: tuple[Any, ...] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        from_failed: bool = False,
        by: str | None = None,
    ) -> Run[R_co]:
        """Create a new run that reuses this run's checkpoints up to a step, or replay a finished graph as a new run.

        The fork of a graph has new nodes with the same arguments and conditions; its gates open again. With
        `from_step` or `from_failed`, other nodes that are done or skipped keep their outcomes.

        Args:
            from_step: The first step to run again, by its name in the code or by its key; of a graph, the node from
                which on nodes run again. None starts from the beginning.
            args: Positional arguments for the new run. With `args` or `kwargs`, they replace all arguments.
            kwargs: Keyword arguments for the new run.
            from_failed: Of a graph, run only what failed or was cancelled, and all nodes that depend on it.
            by: Who forks it, for the history.

        Raises:
            GraphError: The run is a graph that is unfinished, or a node that can't be forked by itself.
        """
        reject_in_event_loop("fork")
        return self._client.fork(self.id, self.task, from_step, args, kwargs, by, from_failed=from_failed)

    async def afork(
        self,
        from_step: str | None = None,
        args: tuple[Any, ...] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        *,
        from_failed: bool = False,
        by: str | None = None,
    ) -> Run[R_co]:
        """Create a new run that reuses this run's checkpoints. The awaitable form of `fork`."""
        fork = partial(self._client.fork, from_failed=from_failed)
        return await run_in_thread(fork, self.id, self.task, from_step, args, kwargs, by)

    def send(self, topic: str, payload: Any = None, *, by: str | None = None, connection: object = None) -> None:
        """Send a message to the run, which receives it with `ctx.receive(topic)`: once, in order.

        Args:
            topic: The topic that the run receives from.
            payload: Any JSON-serializable value.
            by: Who sends it. With a sender, the message is recorded in the history.
            connection: A connection of yours, to send it in its transaction.

        Raises:
            RunFinished: The run has finished, so that it never receives the message.
            BadMessage: The task declares its messages with `receives=`: another topic, or another type for it.
        """
        client = self._client
        client.calling("send", connection, lambda given: client.send(self.id, self.task, topic, payload, by, given))

    async def asend(self, topic: str, payload: Any = None, *, by: str | None = None, connection: object = None) -> None:
        """Send a message to the run. The awaitable form of `send`."""
        client = self._client
        await client.acalling(
            "send", connection, lambda given: client.send(self.id, self.task, topic, payload, by, given)
        )

    @overload
    def ask(
        self, name: str, payload: Any = None, *, timeout: Duration | None = None, type: TypeForm[T],
        key: str | None = None, by: str | None = None,
    ) -> T: ...  # fmt: skip
    @overload
    def ask(
        self, name: str, payload: Any = None, *, timeout: Duration | None = None, type: None = None,
        key: str | None = None, by: str | None = None,
    ) -> Any: ...  # fmt: skip
    def ask(
        self,
        name: str,
        payload: Any = None,
        *,
        timeout: Duration | None = None,
        type: Any = None,
        key: str | None = None,
        by: str | None = None,
    ) -> Any:
        """Ask the run something and return its reply.

        The run answers with `ctx.serve` or `ctx.receive_ask`, once and in order of arrival. An ask waits until the run
        gets to it: also if the run hasn't started, or restarts.

        Args:
            name: The name of the ask.
            payload: Any JSON-serializable value.
            timeout: How long to wait for the reply. None waits forever. The run may answer after a timeout.
            type: The type to decode the reply as. None returns plain JSON.
            key: Makes the ask idempotent: the run handles it once, and a repeated call returns the same reply. A run
                remembers the keys of the last day. Defaults to a random key.
            by: Who asks. With it, the ask is recorded in the history.

        Raises:
            AskRejected: The run rejected the ask, or the handler raised an exception.
            AskTimeout: The run did not answer in time.
            RunFinished: The run has finished, or it ended before it answered.
            BadMessage: The task declares its asks with `asks=`, but none like this.
            KeyConflict: The key was used for another ask to this run.

        Example:
            ```python
            count = run.ask("add", Item("rope", 2), timeout=30, type=int)
            ```
        """
        reject_in_event_loop("ask")
        return self._client.interaction.ask(self.id, self.task, name, payload, timeout, type, key, by)

    @overload
    async def aask(
        self, name: str, payload: Any = None, *, timeout: Duration | None = None, type: TypeForm[T],
        key: str | None = None, by: str | None = None,
    ) -> T: ...  # fmt: skip
    @overload
    async def aask(
        self, name: str, payload: Any = None, *, timeout: Duration | None = None, type: None = None,
        key: str | None = None, by: str | None = None,
    ) -> Any: ...  # fmt: skip
    async def aask(
        self,
        name: str,
        payload: Any = None,
        *,
        timeout: Duration | None = None,
        type: Any = None,
        key: str | None = None,
        by: str | None = None,
    ) -> Any:
        """Ask the run something and return its reply. The awaitable form of `ask`."""
        return await self._client.interaction.aask(self.id, self.task, name, payload, timeout, type, key, by)

    def values(self) -> dict[str, Any]:
        """Return the values that the run publishes with `ctx.set`, by name."""
        reject_in_event_loop("values")
        return self._client.interaction.values(self.id)

    async def avalues(self) -> dict[str, Any]:
        """Return the values that the run publishes. The awaitable form of `values`."""
        return await run_in_thread(self._client.interaction.values, self.id)

    def spent(self) -> dict[str, Decimal]:
        """Return what the run has spent with `ctx.spend`, by budget: itself, without its children, in all windows."""
        reject_in_event_loop("spent")
        return self._client.spent(self.id)

    async def aspent(self) -> dict[str, Decimal]:
        """Return what the run has spent. The awaitable form of `spent`."""
        return await run_in_thread(self._client.spent, self.id)

    @overload
    def get(
        self, name: str, default: T | None = None, *, type: TypeForm[T], wait: bool = False,
        timeout: Duration | None = None,
    ) -> T: ...  # fmt: skip
    @overload
    def get(
        self, name: str, default: Any = None, *, type: None = None, wait: bool = False, timeout: Duration | None = None
    ) -> Any: ...
    def get(
        self, name: str, default: Any = None, *, type: Any = None, wait: bool = False, timeout: Duration | None = None
    ) -> Any:
        """Return a value that the run has set with `ctx.set`.

        Args:
            name: The name of the value.
            default: What to return if the run has not set it.
            type: The type to decode the value as. None returns plain JSON.
            wait: Wait until the run has set it.
            timeout: How long to wait. None waits forever.

        Raises:
            ResultTimeout: The run did not set the value in time.
            RunFinished: The run has finished without setting the value, and `wait` is true.
        """
        reject_in_event_loop("get")
        return self._client.interaction.get(self.id, name, default, type, wait, timeout)

    @overload
    async def aget(
        self, name: str, default: T | None = None, *, type: TypeForm[T], wait: bool = False,
        timeout: Duration | None = None,
    ) -> T: ...  # fmt: skip
    @overload
    async def aget(
        self, name: str, default: Any = None, *, type: None = None, wait: bool = False, timeout: Duration | None = None
    ) -> Any: ...
    async def aget(
        self, name: str, default: Any = None, *, type: Any = None, wait: bool = False, timeout: Duration | None = None
    ) -> Any:
        """Return a value that the run has set with `ctx.set`. The awaitable form of `get`."""
        return await self._client.interaction.aget(self.id, name, default, type, wait, timeout)

    @overload
    def watch(self, name: str, *, type: TypeForm[T]) -> Iterator[T]: ...
    @overload
    def watch(self, name: str, *, type: None = None) -> Iterator[Any]: ...
    def watch(self, name: str, *, type: Any = None) -> Iterator[Any]:
        """Yield a value that the run sets with `ctx.set`: the current one, then each new one, until the run finishes.

        A reader that is slower than the run gets the latest value, not those in between.
        """
        reject_in_event_loop("watch", "use `async for value in run.awatch(…)`")
        return self._client.interaction.watch(self.id, name, type)

    @overload
    def awatch(self, name: str, *, type: TypeForm[T]) -> AsyncIterator[T]: ...
    @overload
    def awatch(self, name: str, *, type: None = None) -> AsyncIterator[Any]: ...
    def awatch(self, name: str, *, type: Any = None) -> AsyncIterator[Any]:
        """Yield a value that the run sets with `ctx.set`. The async form of `watch`."""
        return self._client.interaction.awatch(self.id, name, type)

    def stream(self, after: int = 0) -> Iterator[Chunk]:
        """Yield the chunks that the run writes with `ctx.write`, until it finishes.

        Args:
            after: Skip the chunks up to this sequence number, to resume a stream.
        """
        reject_in_event_loop("stream", "use `async for chunk in run.astream(…)`")
        return self._client.streams.stream(self.id, after)

    def astream(self, after: int = 0) -> AsyncIterator[Chunk]:
        """Yield the chunks that the run writes. The async form of `stream`."""
        return self._client.streams.astream(self.id, after)

    def stream_url(self, expires: Duration = DEFAULT_EXPIRY) -> str:
        """Return a signed URL of the run's stream on the dashboard, for browsers and other programs without a token.

        A holder of the URL reads what this run writes and sets, and the state in which it ends, but neither its result
        nor its error. Needs `Holdfast(secret=…, public_url=…)`.

        Args:
            expires: How long the URL is valid, in seconds or as a `timedelta`. Open streams end then, too.

        Raises:
            ConfigError: `secret` or `public_url` isn't set.
        """
        return stream_url(self._client.links, self.id, expires, self._client.store.clock)

    def nodes(self) -> dict[str, RunInfo[Any]]:
        """Return the nodes of a graph by name. Each node is a run.

        Raises:
            GraphError: The run is not a graph.
        """
        reject_in_event_loop("nodes")
        return self._client.graphs.nodes(self.id)

    async def anodes(self) -> dict[str, RunInfo[Any]]:
        """Return the nodes of a graph by name. The awaitable form of `nodes`."""
        return await run_in_thread(self._client.graphs.nodes, self.id)

    def gate(self, name: str) -> Gate:
        """Return a gate of a graph or a durable function, to complete or fail it."""
        return self._client.graphs.gate(self.id, name)

    def gates(self) -> list[Gate]:
        """Return the open gates of a graph or a durable function, the oldest first, including those of its graphs."""
        reject_in_event_loop("gates")
        return self._client.graphs.gates(self.id)

    async def agates(self) -> list[Gate]:
        """Return the open gates. The awaitable form of `gates`."""
        return await run_in_thread(self._client.graphs.gates, self.id)

    def append(self, graph: Graph, *, key: str) -> None:
        """Add nodes to an unfinished graph.

        The new nodes may depend on nodes of the run: `graph.node(name)`.

        Args:
            graph: The nodes to add.
            key: Makes the call idempotent: repeating it with the same nodes changes nothing.

        Raises:
            KeyConflict: The key was used with different nodes.
        """
        reject_in_event_loop("append")
        self._client.graphs.append(self.id, graph, key)

    async def aappend(self, graph: Graph, *, key: str) -> None:
        """Add nodes to an unfinished graph. The awaitable form of `append`."""
        await run_in_thread(self._client.graphs.append, self.id, graph, key)

    def history(self) -> list[HistoryEntry]:
        """Return the history of the run, from its creation to its end."""
        reject_in_event_loop("history")
        return self._client.history(self.id)

    async def ahistory(self) -> list[HistoryEntry]:
        """Return the history of the run. The awaitable form of `history`."""
        return await run_in_thread(self._client.history, self.id)

    def logs(
        self, *, level: LogLevel | None = None, search: str | None = None, after: int = 0, limit: int | None = None
    ) -> LogPage:
        """Return the lines that the code of the run has logged, oldest first, if `Holdfast(logs=…)` keeps them.

        Args:
            level: Only lines of this level and above.
            search: Only lines with this text in the message or the name of the logger, in any case.
            after: Skip the lines up to this `seq`.
            limit: How many lines to return at most. None returns all that are kept.

        Raises:
            RunNotFound: The run has been pruned, and its lines with it.
        """
        reject_in_event_loop("logs")
        return self._client.logs(self.id, level, search, after, limit)

    async def alogs(
        self, *, level: LogLevel | None = None, search: str | None = None, after: int = 0, limit: int | None = None
    ) -> LogPage:
        """Return the lines that the code of the run has logged. The awaitable form of `logs`."""
        return await run_in_thread(self._client.logs, self.id, level, search, after, limit)

    def why(self) -> list[Reason]:
        """Explain why the run isn't running: the reasons, each with a code, a text and the command that removes it.

        The same answer as `holdfast why` and `GET /runs/ID/why`. A finished run has one reason, `ended`, a running one
        `running`.

        Raises:
            RunNotFound: There is no such run, or it has been pruned.
        """
        reject_in_event_loop("why")
        return self._client.explain(self.id)

    async def awhy(self) -> list[Reason]:
        """Explain why the run isn't running. The awaitable form of `why`."""
        return await run_in_thread(self._client.explain, self.id)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.task}>"


def _given(priority: int | None, run_at: datetime | None, tags: Sequence[str] | None) -> dict[str, Any]:
    """Return the options to change; those that are None stay."""
    options = {"priority": priority, "run_at": run_at, "tags": tags}
    return {name: value for name, value in options.items() if value is not None}
