"""Talk to running functions: read and follow their values, ask them and wait for their answers.

A caller that waits is a follower (`streams.py`): a commit of a worker in this process wakes it, a notification does
when another process has written, and it polls in between, less and less often.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from holdfast.client.results import PollBackoff
from holdfast.client.streams import Follower, RunFollowers, set_from_thread
from holdfast.database import Row
from holdfast.errors import AskTimeout, PayloadError, ResultTimeout, RunFinished, RunNotFound, StoreUnavailable
from holdfast.model.asks import AskAnswer, decode_rejection
from holdfast.model.blocking_calls import run_in_thread
from holdfast.model.clock import Duration
from holdfast.model.codec import decode_value
from holdfast.model.ids import new_id_text
from holdfast.model.names import MAX_KEY_CHARS, check_actor, check_name
from holdfast.model.run import FINAL_STATES
from holdfast.store import Store
from holdfast.store.interaction import RunValues, StoredAnswer, StoredValue
from holdfast.task.annotations import payload_type
from holdfast.task.registry import Registry
from holdfast.task.scope import refuse_in_body

T = TypeVar("T")


class SentAsk(NamedTuple):
    """An ask that was sent."""

    run: UUID
    name: str
    key: str


class InteractionFollower(Follower):
    """A caller that waits for a value or an answer."""

    __slots__ = ("_has_news", "_has_waited", "known")

    def __init__(self, run: UUID, after: int = 0) -> None:
        super().__init__(run, after, _do_nothing)
        self.known: Any = None
        """What it waits for, if it was found when the caller was woken."""
        self._has_news = self._has_waited = False

    def wake(self, row: Row | None = None) -> None:
        self._has_news = True
        super().wake(row)

    def needs_read(self, store: Store, backoff: PollBackoff) -> bool:
        """Return whether to read now: at first not while a local worker executes the run, which reports its writes.

        Forgets what was reported, so call it only when the caller can be woken again.
        """
        has_news, self._has_news = self._has_news, False
        has_waited, self._has_waited = self._has_waited, True
        return has_news or (has_waited and not (backoff.is_short and store.is_claimed_here(self.id)))


class ValueFollower(InteractionFollower):
    """A caller that waits for a value of a run to change. `after` is the version that it has seen."""

    __slots__ = ("name",)

    def __init__(self, run: UUID, name: str, after: int = 0) -> None:
        super().__init__(run, after)
        self.name = name

    @classmethod
    def with_news(cls, store: Store, followers: Sequence[Any]) -> list[Follower]:
        known = store.values.versions({follower.id for follower in followers})
        found: list[Follower] = []
        for follower in followers:
            state, versions = known.get(follower.id, ("", {}))
            if not state or state in FINAL_STATES or versions.get(follower.name, 0) > follower.after:
                found.append(follower)
        return found


class AskFollower(InteractionFollower):
    """A caller that waits for the answer to an ask."""

    __slots__ = ("ask",)

    def __init__(self, ask: SentAsk) -> None:
        super().__init__(ask.run)
        self.ask = ask

    def on_local_write(self, answers: Mapping[str, AskAnswer | None]) -> None:
        """Take the answer, or read it if it isn't known or is stored in another form."""
        if self.ask.key not in answers:
            return
        answer = answers[self.ask.key]
        if answer is not None and answer.text[:1] != "~":
            self.known = StoredAnswer(self.ask.name, answer.answer, answer.text, "running")
        self.wake()

    @classmethod
    def with_news(cls, store: Store, followers: Sequence[Any]) -> list[Follower]:
        answers = store.asks.answers(list({(follower.id, follower.ask.key) for follower in followers}))
        found: list[Follower] = []
        for follower in followers:
            answer = answers.get((follower.id, follower.ask.key))
            if answer is None or answer.answer is not None or _has_ended(answer.state):
                if answer is not None and answer.answer is not None:
                    follower.known = answer
                found.append(follower)
        return found


def _do_nothing() -> None:
    """Wake nobody: the caller doesn't wait yet."""


def _has_ended(state: str) -> bool:
    return state in FINAL_STATES or state == "undoing"


class RunInteraction:
    """Values and asks of runs."""

    def __init__(self, store: Store, registry: Registry, followers: RunFollowers) -> None:
        self._store = store
        self._registry = registry
        self._followers = followers

    # Wait

    def _wait(
        self,
        follower: InteractionFollower,
        read: Callable[[], T | None],
        backoff: PollBackoff,
        begin: Callable[[], bool] | None = None,
    ) -> T:
        """Call `read` until it returns something, whenever the run may have written it. Raises ResultTimeout.

        `begin`: called first, and returns whether there is something to read at once.
        """
        changed = threading.Event()
        follower.on_news = changed.set
        with self._followers.add(follower):
            if begin is None or begin():
                follower.wake()
            while True:
                changed.clear()
                if follower.needs_read(self._store, backoff):
                    pause, found = self._try(follower, read, backoff)
                    if found is not None:
                        return found
                else:
                    pause = self._followers.pause(backoff)
                self._store.database.reject_wait_in_transaction(f"run {follower.id}")
                changed.wait(pause)

    async def _await(
        self,
        follower: InteractionFollower,
        read: Callable[[], T | None],
        backoff: PollBackoff,
        begin: Callable[[], bool] | None = None,
    ) -> T:
        """Do the same in a coroutine."""
        import asyncio

        loop, changed = asyncio.get_running_loop(), asyncio.Event()
        follower.on_news = lambda: set_from_thread(loop, changed)
        with self._followers.add(follower):
            if begin is None or await run_in_thread(begin):
                follower.wake()
            while True:
                changed.clear()
                if follower.needs_read(self._store, backoff):
                    pause, found = await self._try_in_thread(follower, read, backoff)
                    if found is not None:
                        return found
                else:
                    pause = self._followers.pause(backoff)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await changed.wait()

    def _try(
        self, follower: InteractionFollower, read: Callable[[], T | None], backoff: PollBackoff
    ) -> tuple[float, T | None]:
        """Call `read`, unless the follower knows what it waits for. Returns the seconds to the next poll, and that."""
        try:
            found = read() if follower.known is None else follower.known
        except StoreUnavailable as error:
            return backoff.pause_after_failure(error, self._followers.max_interval()), None
        return (0.0, found) if found is not None else (self._followers.pause(backoff), None)

    async def _try_in_thread(
        self, follower: InteractionFollower, read: Callable[[], T | None], backoff: PollBackoff
    ) -> tuple[float, T | None]:
        """Call `_try` in a thread, if that would read."""
        if follower.known is not None:
            return 0.0, follower.known
        return await run_in_thread(self._try, follower, read, backoff)

    # Values

    def values(self, id: UUID) -> dict[str, Any]:
        """Return all values of a run by name."""
        return {name: _decode_value_of(id, name, value, None) for name, value in self._read(id).values.items()}

    def get(self, id: UUID, name: str, default: Any, type: Any, wait: bool, timeout: Duration | None) -> Any:
        """Return a value of a run, or the default if it isn't set; with `wait`, wait until it is."""
        name, kind = check_name(name, "the name of a value"), payload_type(type, "get: type=")
        if not wait:
            found = self._read(id, name).values.get(name)
            return default if found is None else _decode_value_of(id, name, found, kind)
        try:
            value = self._wait(ValueFollower(id, name), lambda: self._set_value(id, name), PollBackoff(id, timeout))
        except ResultTimeout:
            raise _not_set(id, name, timeout) from None
        return _decode_value_of(id, name, value, kind)

    async def aget(self, id: UUID, name: str, default: Any, type: Any, wait: bool, timeout: Duration | None) -> Any:
        """Do the same in a coroutine."""
        if not wait:
            return await run_in_thread(self.get, id, name, default, type, False, None)
        name, kind = check_name(name, "the name of a value"), payload_type(type, "get: type=")
        follower, backoff = ValueFollower(id, name), PollBackoff(id, timeout)
        try:
            value = await self._await(follower, lambda: self._set_value(id, name), backoff)
        except ResultTimeout:
            raise _not_set(id, name, timeout) from None
        return _decode_value_of(id, name, value, kind)

    def watch(self, id: UUID, name: str, type: Any) -> Iterator[Any]:
        """Yield a value of a run whenever it has changed, until the run ends."""
        follower, read, kind = self._watching(id, name, type)
        while (value := self._wait(follower, read, PollBackoff(id, None))) is not _ENDED:
            follower.after = value.version
            yield _decode_value_of(id, name, value, kind)

    async def awatch(self, id: UUID, name: str, type: Any) -> AsyncIterator[Any]:
        """Yield a value of a run whenever it has changed, until the run ends."""
        follower, read, kind = self._watching(id, name, type)
        while (value := await self._await(follower, read, PollBackoff(id, None))) is not _ENDED:
            follower.after = value.version
            yield _decode_value_of(id, name, value, kind)

    def _watching(self, id: UUID, name: str, type: Any) -> tuple[ValueFollower, Callable[[], StoredValue | None], Any]:
        kind = payload_type(type, "watch: type=")
        follower = ValueFollower(id, check_name(name, "the name of a value"))

        def read() -> StoredValue | None:
            found = self._read(id, name)
            value = found.values.get(name)
            if value is not None and value.version > follower.after:
                return value
            return _ENDED if found.state in FINAL_STATES else None

        return follower, read, kind

    def _set_value(self, id: UUID, name: str) -> StoredValue | None:
        """Return a value that the run has set, or None if it may still set it."""
        found = self._read(id, name)
        value = found.values.get(name)
        if value is None and found.state in FINAL_STATES:
            raise RunFinished(f"run {id} is {found.state} and has not set the value {name!r}")
        return value

    def _read(self, id: UUID, name: str | None = None) -> RunValues:
        found = self._store.values.read(str(id), name)
        if found is None:
            raise RunNotFound.of(id)
        return found

    # Asks

    def ask(
        self,
        id: UUID,
        task: str,
        name: str,
        payload: Any,
        timeout: Duration | None,
        type: Any,
        key: str | None,
        by: str | None = None,
    ) -> Any:
        """Ask a run and return its reply."""
        kind, backoff = payload_type(type, "ask: type="), PollBackoff(id, timeout)
        pending, send = self._new_ask(id, task, name, payload, key, by)
        follower = AskFollower(pending)
        try:
            answer = self._wait(follower, lambda: self.answer(pending), backoff, begin=send)
        except ResultTimeout:
            raise _unanswered(pending, timeout) from None
        return _reply(pending, answer, kind)

    async def aask(
        self,
        id: UUID,
        task: str,
        name: str,
        payload: Any,
        timeout: Duration | None,
        type: Any,
        key: str | None,
        by: str | None = None,
    ) -> Any:
        """Ask a run and return its reply."""
        kind, backoff = payload_type(type, "ask: type="), PollBackoff(id, timeout)
        pending, send = self._new_ask(id, task, name, payload, key, by)
        follower = AskFollower(pending)
        try:
            answer = await self._await(follower, lambda: self.answer(pending), backoff, begin=send)
        except ResultTimeout:
            raise _unanswered(pending, timeout) from None
        return _reply(pending, answer, kind)

    def send_ask(self, id: UUID, task: str, name: str, payload: Any, key: str | None, by: str | None = None) -> SentAsk:
        """Send an ask without waiting for its answer."""
        pending, send = self._new_ask(id, task, name, payload, key, by)
        send()
        return pending

    def _new_ask(
        self, id: UUID, task: str, name: str, payload: Any, key: str | None, by: str | None
    ) -> tuple[SentAsk, Callable[[], bool]]:
        """Return an ask, and a function that sends it and returns whether it was sent before: it may be answered."""
        refuse_in_body("ask", 'call it inside a step: `ctx.step(run.ask, name, payload, name="ask")`')
        text = self._registry.encode_ask(task, check_name(name, "the name of an ask"), payload)
        chosen = new_id_text() if key is None else check_name(key, "key", MAX_KEY_CHARS)
        actor = check_actor(by)
        return SentAsk(id, name, chosen), lambda: not self._store.asks.ask(str(id), name, text, chosen, actor)

    def answer(self, ask: SentAsk) -> StoredAnswer | None:
        """Return the answer to an ask, or None if the run may still answer. Raises RunFinished if it has ended."""
        found = self._store.asks.answers([(str(ask.run), ask.key)]).get((str(ask.run), ask.key))
        if found is None:
            raise RunFinished(f"run {ask.run} was retried or has been pruned, and did not answer ask {ask.name!r}")
        if found.answer is None and _has_ended(found.state):
            raise RunFinished(f"run {ask.run} is {found.state} and did not answer ask {ask.name!r}")
        return None if found.answer is None else found


_ENDED = StoredValue("", 0, 0)
"""What a watcher reads when the run has ended and the value won't change any more."""


def _not_set(id: UUID, name: str, timeout: Duration | None) -> ResultTimeout:
    return ResultTimeout(f"run {id} did not set the value {name!r} within {_seconds(timeout)}")


def _unanswered(ask: SentAsk, timeout: Duration | None) -> AskTimeout:
    return AskTimeout(
        f"run {ask.run} did not answer ask {ask.name!r} within {_seconds(timeout)}; it may still do so, "
        f"and an ask with key={ask.key!r} gets the reply"
    )


def _seconds(timeout: Duration | None) -> str:
    seconds = timeout if isinstance(timeout, int | float) else 0 if timeout is None else timeout.total_seconds()
    return f"{seconds:g} s"


def _reply(ask: SentAsk, answer: StoredAnswer, kind: Any) -> Any:
    if answer.answer == "rejected":
        raise decode_rejection(answer.text).error(ask.name, str(ask.run))
    return _decode(answer.text, kind, f"the reply of run {ask.run} to ask {ask.name!r}")


def _decode_value_of(id: UUID, name: str, value: StoredValue, kind: Any) -> Any:
    return _decode(value.text, kind, f"the value {name!r} of run {id}")


def _decode(text: str, kind: Any, what: str) -> Any:
    try:
        return decode_value(text, kind or Any)
    except PayloadError as error:
        raise type(error)(f"{what}: {error}") from error
