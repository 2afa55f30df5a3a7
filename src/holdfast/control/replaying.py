"""Replays one open run with the code of now, without running a step or writing anything, and tells where they part.

The function does again what is on record. At the first thing that isn't, a branch stands still; when all of them do, or
the function has ended, what is on record and was not asked for, and what the run waits for, say whether it would go on
as it did. Author code outside steps does run.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, NoReturn, TypeAlias
from uuid import UUID

import msgspec

from holdfast.engine.attempt import Attempt
from holdfast.engine.durable.async_executor import AsyncExecutor
from holdfast.engine.durable.history import RecordedHistory
from holdfast.engine.durable.plans import OperationPlans
from holdfast.engine.durable.replay import Arguments, ReplayOutcome, missing_undos, replay_async, replay_sync
from holdfast.engine.durable.sync_executor import SyncExecutor
from holdfast.engine.services import ClientServices
from holdfast.engine.threads import ThreadCall, Threads
from holdfast.errors import HoldfastError, TaskError
from holdfast.model.failure import describe
from holdfast.model.labels import label_of
from holdfast.model.payloads import Payloads
from holdfast.store import NewRun, Store
from holdfast.store.commands import Checkpoint, Held, Kept
from holdfast.store.rows import NewGraph
from holdfast.store.views import OpenClaim
from holdfast.task.registry import Registry
from holdfast.task.task import Task

Kind: TypeAlias = Literal[
    "arguments",  # the kept ones don't fit the code
    "not_durable",  # the task isn't a durable function any more
    "removed",  # on record, and not asked for any more
    "instead",  # on record, and the code asks for something else first
    "drift",  # on record, and asked for with other arguments
    "raised",  # the code raises where the record went on
    "wait",  # what the run waits for isn't waited for any more
    "added",  # the code would do something new where the run only waits
    "undo",  # a compensation isn't in the code any more
    "timeout",  # the replay didn't come to rest
    "unchecked",  # the replay couldn't go on
]

GIVE_UP = 1.0
"""How much longer than its time a replay gets to clean up, in seconds."""
SIGNAL_LOOK = 0.5
"""How long Ctrl-C may go unnoticed: one that comes right before a wait doesn't end that wait."""


class Finding(msgspec.Struct, frozen=True):
    """A place where a run and the code of now part."""

    kind: Kind
    where: str
    """The step or wait, as people name it."""
    text: str
    key: str | None = None


class CannotCheck(BaseException):
    """Author code wants something that a replay can't give. No `Exception`: it isn't to be handled."""


class ChildHandle:
    """A child as a replay gives it to author code: it can be joined, and nothing else."""

    def __init__(self, id: UUID, task: str) -> None:
        self.id = id
        self.task = task

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ChildHandle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<run {self.id} of {self.task}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise CannotCheck(f"it uses .{name} of another run outside of a step")


class ReadingClerk:
    """What a replay needs of the application's side: nothing that makes anything."""

    def __init__(self, registry: Registry, payloads: Payloads) -> None:
        self._registry = registry
        self._payloads = payloads

    def new_run(self, request: Any) -> NewRun:  # noqa: ARG002
        raise _refusal("make a run")

    def new_child_graph(self, plan: Any, result: str | None) -> tuple[NewRun, NewGraph]:  # noqa: ARG002
        raise _refusal("make a graph")

    def pack(self, text: str, what: str) -> str:
        return self._payloads.pack(text, what)

    def unpack(self, text: str) -> str:
        return self._payloads.unpack(text)

    def trace(self) -> str | None:
        """Nothing is made that a trace could be kept with."""

    def handle(self, id: UUID, task: str) -> ChildHandle:
        return ChildHandle(id, task)

    def decode_result(self, task: str, text: str) -> Any:
        return self._registry.decode_result(task, self.unpack(text))

    def ended(self) -> None:
        """Nothing ends here."""


class ReadingDesk:
    """A worker that does nothing but read."""

    def __init__(self, store: Store, client: ClientServices) -> None:
        self.store = store
        self.client = client

    def run_in_thread(self, call: Callable[[], None]) -> ThreadCall:
        """Run a call that reads the ends of children. Its thread ends with the call."""
        threads = Threads()
        handle = threads.run(call)
        threads.close()
        return handle

    def has_free_slots(self) -> bool:
        return True

    def submit(self, ask: Any) -> NoReturn:
        raise _refusal(f"write {type(ask.command).__name__}")

    submit_here = keep = submit

    def read(self, attempt: Any, read: Callable[[], Any]) -> Any:  # noqa: ARG002
        return read()

    def watch(self, waiting: Any) -> NoReturn:  # noqa: ARG002
        raise _refusal("wait")

    def stop(self, attempt: Any, order: Any) -> NoReturn:  # noqa: ARG002
        raise _refusal(f"end by {order}")

    def transact(self, attempt: Any, command: Any, work: Any) -> NoReturn:  # noqa: ARG002
        raise _refusal("run a transaction")


def _refusal(what: str) -> TaskError:
    return TaskError(f"a check would {what}: that is a fault in Holdfast")


class OneReplay:
    """The replay of one run."""

    def __init__(self, services: ReadingDesk, task: Task[..., Any], run: OpenClaim, kept: Kept, timeout: float) -> None:
        claim = run.claim
        self._services = services
        self._run = run
        self._timeout = timeout
        self._history = RecordedHistory(kept, Held(claim.id, claim.seq, claim.fence, claim.generation))
        self._waits = list(self._history.open_waits)
        self._plans = OperationPlans(claim, self._history, services.client, services.store.journal, replay_only=True)
        self._attempt = Attempt(claim, task, "check", kept)
        self._unrecorded: list[str] = []
        self._replayed: ReplayOutcome | None = None

    def findings(self) -> list[Finding]:
        """Where the run and the code part; empty when the run would go on as it did."""
        try:
            arguments = self._attempt.signature.decode(self._run.claim.args)
        except Exception as error:
            return [Finding("arguments", "arguments", f"the kept ones don't fit the code: {_told(error)}")]
        thread = threading.Thread(target=self._work, args=(arguments,), name="holdfast-check", daemon=True)
        thread.start()
        until = time.monotonic() + self._timeout + GIVE_UP
        while thread.is_alive() and (left := until - time.monotonic()) > 0:
            thread.join(min(left, SIGNAL_LOOK))
        if self._replayed is None:
            key = next((kept.key for kept in _in_order(self._history)), None)
            where = "the end of its record" if key is None else label_of(key)
            text = f"the replay didn't come to it, or to rest, within {self._timeout:g} s"
            return [Finding("timeout", where, text, key)]
        if isinstance(self._replayed.error, CannotCheck):
            return [Finding("unchecked", "body", str(self._replayed.error))]
        return self._undo_findings() if self._run.claim.ending is not None else self._compare(self._replayed)

    # Replaying

    def _work(self, arguments: Arguments) -> None:
        try:
            if self._attempt.place == "loop":
                with asyncio.Runner() as runner:
                    runner.get_loop().set_exception_handler(lambda *_: None)
                    self._replayed = runner.run(asyncio.wait_for(self._on_loop(arguments), self._timeout))
            else:
                executor = SyncExecutor(self._attempt, self._plans, self._services)
                self._unrecorded = executor.unrecorded
                self._replayed = replay_sync(executor, arguments)
        except TimeoutError:
            pass  # said by there being no outcome
        except BaseException as error:
            self._replayed = ReplayOutcome(True, error)

    async def _on_loop(self, arguments: Arguments) -> ReplayOutcome:
        executor = AsyncExecutor(self._attempt, self._plans, self._services, asyncio.get_running_loop())
        self._unrecorded = executor.unrecorded
        return await replay_async(executor, arguments)

    # Comparing

    def _undo_findings(self) -> list[Finding]:
        """A run that undoes only needs its compensations."""
        text = "it is to be undone, but its compensation isn't in the code any more"
        return [Finding("undo", label_of(key), text, key) for key in missing_undos(self._plans)]

    def _compare(self, replayed: ReplayOutcome) -> list[Finding]:
        unasked = _in_order(self._history)
        lost_waits = [key for key in self._waits if key not in self._unrecorded]
        if replayed.error is not None and (unasked or lost_waits):
            key = unasked[0].key if unasked else lost_waits[0]
            what = "is on record" if unasked else "is waited for"
            return [Finding("raised", label_of(key), f"{what}, but the code raises {_told(replayed.error)}", key)]
        new = [key for key in dict.fromkeys(self._unrecorded) if key not in self._waits]
        found = self._unasked(unasked, new)
        if not (found and new):  # else those may well be waited for behind what is new
            found += [_lost(key, new, ended=replayed.ended) for key in lost_waits]
        if not found and self._run.state == "waiting" and not self._history.resolved_waits:
            text = "isn't on record, but the code would run it now, where the run only waits"
            found = [Finding("added", label_of(key), text, key) for key in new]
        return found + self._without_undo()

    def _unasked(self, unasked: list[Checkpoint], new: list[str]) -> list[Finding]:
        """What is on record and wasn't asked for. What lies behind something new can't be seen."""
        drifted = {key for keys in self._history.drift().values() for key in keys}
        text = "the code asks for it with other arguments, so it would run again"
        found = [Finding("drift", label_of(kept.key), text, kept.key) for kept in unasked if kept.key in drifted]
        others = [kept for kept in unasked if kept.key not in drifted]
        if new:
            return found or ([_instead(others, new)] if others else [])
        text = "is on record, but the code doesn't ask for it any more"
        return found + [Finding("removed", label_of(kept.key), text, kept.key) for kept in others]

    def _without_undo(self) -> list[Finding]:
        text = "was recorded with a compensation, which isn't in the code any more"
        return [
            Finding("undo", label_of(key), text, key)
            for n, key in self._plans.steps_without_undo
            if n not in self._history.undone
        ]


def _in_order(history: RecordedHistory) -> list[Checkpoint]:
    return sorted(history.unconsumed.values(), key=lambda kept: kept.n)


def _instead(unasked: list[Checkpoint], new: list[str]) -> Finding:
    first = unasked[0]
    more = f" (and {len(unasked) - 1} more)" if len(unasked) > 1 else ""
    text = f"is on record{more}, but the code asks for {_some(new)} first"
    return Finding("instead", label_of(first.key), text, first.key)


def _lost(key: str, new: list[str], *, ended: bool) -> Finding:
    instead = "would end instead" if ended else f"would go on with {_some(new)}" if new else "doesn't any more"
    return Finding("wait", label_of(key), f"the run waits for it, but the code {instead}", key)


def _some(keys: list[str]) -> str:
    named = ", ".join(map(label_of, keys[:3]))
    return f"{named}, …" if len(keys) > 3 else named


def _told(error: BaseException) -> str:
    return " ".join((str(error) if isinstance(error, HoldfastError) else str(describe(error))).split())
