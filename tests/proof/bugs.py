"""Bugs to be planted, to see whether the proof catches them: changed statements, and changed code."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
from greenlet import getcurrent

from holdfast.database import statements
from holdfast.engine.event_loop import StallHandler
from holdfast.engine.loops.claimer import Claimer
from holdfast.engine.loops.committer import Committer
from holdfast.engine.loops.heartbeat import Heartbeat
from holdfast.engine.processes import framing, pool
from holdfast.policy.admission import LimitCounter
from holdfast.store import command_batch
from holdfast.store.attempts import AttemptStore
from holdfast.store.claims import ScanPolicy
from holdfast.store.commands import EmitCommand, WaitCommand
from holdfast.store.journal import Journal
from holdfast.store.step_transactions import StepTransactions

Changes = dict[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Bug:
    """A mistake that somebody might make. `sql`: what is replaced in which statements; `code`: what else."""

    name: str
    what: str
    sql: Changes | None = None
    code: Callable[[], Any] | None = None
    in_the_store: bool = True
    """Whether the model, which knows no engine, could see it."""
    test: str | None = None
    """The test that catches it, where neither the model nor the simulation has what it breaks."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """While it is there. Stores that were made before don't have it."""
        with ExitStack() as stack:
            if self.sql is not None:
                sources = statements.read_sources("holdfast.store.sql")
                unknown = self.sql.keys() - {source.name for source in sources}
                assert not unknown, f"{self.name}: there is no statement {unknown} any more"
                changed = [self._changed(source) for source in sources]
                stack.enter_context(mock.patch.object(statements, "read_sources", return_value=tuple(changed)))
            if self.code is not None:
                stack.enter_context(self.code())
            yield

    def _changed(self, source: statements.Source) -> statements.Source:
        """On PostgreSQL some statements are others; those stay as they are."""
        assert self.sql is not None
        if source.name not in self.sql or source.only == "postgres":
            return source
        text = source.text
        for old, new in self.sql[source.name]:
            assert old in text, f"{self.name}: statement {source.name} doesn't say {old!r} any more"
            text = text.replace(old, new)
        return msgspec.structs.replace(source, text=text)


def sql(name: str, what: str, statement: str, old: str, new: str) -> Bug:
    return Bug(name, what, {statement: ((old, new),)})


def code(name: str, what: str, where: Any, attribute: str, instead: Any, test: str | None = None) -> Bug:
    patch = partial(mock.patch.object, where, attribute, instead)
    module = getattr(where, "__module__", where.__name__)
    in_the_store = module.startswith(("holdfast.store", "holdfast.policy"))
    return Bug(name, what, code=patch, in_the_store=in_the_store, test=test)


def _one_more(counter: LimitCounter, now: int) -> int | None:
    free = _free(counter, now)
    return None if free is None else free + 1


_free = LimitCounter.free


def _apart(attempts: AttemptStore, purpose: str, work: Callable[[Any], Any]) -> Any:
    return work(attempts._autocommit(purpose))


_early: dict[Any, dict[str, str]] = {}
_write, _lock_events = Journal.write, command_batch.lock_events


def _looks_first(journal: Journal, session: str, commands: Any) -> Any:
    """Look at events in a transaction of its own, before the one that locks them and registers the wait."""
    events = {(each.tenant, each.name) for each in commands if isinstance(each, EmitCommand)}
    events |= {
        (each.tenant, str(each.name)) for each in commands if isinstance(each, WaitCommand) and each.kind == "event"
    }
    if events:
        _early[getcurrent()] = journal._transaction("commit", lambda tx: _lock_events(tx, events))
    return _write(journal, session, commands)


def _seen_early(_tx: Any, events: Any) -> dict[str, str]:
    return _early.get(getcurrent(), {})


@contextmanager
def _early_look() -> Iterator[None]:
    with (
        mock.patch.object(Journal, "write", _looks_first),
        mock.patch.object(command_batch, "lock_events", _seen_early),
    ):
        yield


_tick = Claimer.tick


def _claim_anyway(claimer: Claimer) -> float:
    with mock.patch.object(claimer, "_monitor", SimpleNamespace(is_stalled=False)):
        return _tick(claimer)


_resume_s = ScanPolicy.resume_s


def _as_long_as_it_takes(policy: ScanPolicy, head_scan_s: float, *, crowded: bool) -> float:
    return _resume_s(replace(policy, max_head_interval_s=math.inf), head_scan_s, crowded=crowded)


def _any_answer(file: int, more: Callable[[], bool], tag: bytes) -> bytes | None:
    header = framing._read(file, len(tag) + 4, more)
    return None if header is None else framing._read(file, int.from_bytes(header[len(tag) :]), more)


ALIVE = "lease_until > {clock}"

BUGS = (
    sql("claim-dead", "a session claims after its lease", "claim", ALIVE, "lease_until > 0"),
    Bug(
        "claim-held", "runs that are held are claimed",
        {
            "pick_claimable": ((" and x.held is null", ""),),
            "claim": ((" and held is null", ""), (" and x.held is null", "")),
        },
    ),
    sql(
        "claim-order", "the last come first", "pick_claimable",
        "order by x.priority desc, x.turn, x.seq", "order by x.seq desc",
    ),
    sql("claim-fence", "a claim doesn't raise the fence", "claim", "fence = fence + 1", "fence = fence"),
    Bug(
        "claim-resumed", "going on counts as a new attempt",
        {
            "pick_claimable": (("r.attempt + 1 - r.resumed", "r.attempt + 1"),),
            "claim": (("attempt + 1 - resumed", "attempt + 1"),),
        },
    ),
    sql(
        "record-fence", "a checkpoint is written without its fence", "record_checkpoints",
        " and r.fence = each.fence", "",
    ),
    sql("record-lease", "a checkpoint is written after the lease", "record_checkpoints", ALIVE, "lease_until > 0"),
    sql("end-fence", "an attempt ends without its fence", "end_attempts", " and {schema}runs.fence = each.fence", ""),
    sql(
        "end-state", "a cancelled run is ended by its worker", "end_attempts",
        "and {schema}runs.state = 'running'", "",
    ),
    Bug(
        "end-lease", "attempts end after the lease",
        dict.fromkeys(("lock_session", "end_attempts"), ((ALIVE, "lease_until > 0"),)),
    ),
    sql(
        "lease-off-by-one", "a lease lives for one microsecond more", "renew_session",
        ALIVE, "lease_until >= {clock}",
    ),
    sql("lease-renewed", "a lease that is over is renewed", "renew_session", f" and {ALIVE}", ""),
    Bug(
        "recover-live", "sessions are recovered a second too early",
        {
            "find_dead_sessions": (("lease_until <= {clock}", "lease_until <= {clock} + 1000000"),),
            "lock_dead_sessions": (("lease_until <= {clock}", "lease_until <= {clock} + 1000000"),),
        },
    ),
    sql(
        "recover-counts", "a run may crash once too often", "crash_runs",
        "crashes >= max_crashes", "crashes > max_crashes",
    ),
    sql(
        "recover-permits", "permits aren't returned", "return_permits",
        "used - excluded.touched_at else", "used else",
    ),
    sql(
        "wake-missed", "what came before the suspension isn't seen", "end_tree_attempts",
        "when each.kind = 'waiting' and exists", "when 1 = 0 and exists",
    ),
    sql("event-unseen", "an event that was emitted isn't seen", "read_emitted", "emitted_at is not null", "1 = 0"),
    Bug("event-early", "an event is looked at before its lock", code=_early_look),
    sql(
        "wait-extended", "what settles a wait settles it again", "resolve_waits",
        " and {schema}waits.outcome is null", "",
    ),
    Bug(
        "sleep-early", "a sleep ends half a second too early",
        {
            "find_runs_with_due_waits": (("w.due_at <= {now}", "w.due_at <= {now} + 500000"),),
            "resolve_due_waits": (("<= {now}", "<= {now} + 500000"),),
        },
    ),
    sql(
        "due-early", "scheduled runs begin half a second too early", "promote_due_runs",
        "due_at <= {now}", "due_at <= {now} + 500000",
    ),
    sql("message-twice", "a message is taken twice", "first_unread_message", " and taken_by is null", ""),
    sql("message-repeated", "a message is sent again after a lost answer", "find_sent_message", "limit 1", "limit 0"),
    code("limit-off-by-one", "a limit lets in one too many", LimitCounter, "free", _one_more),
    sql(
        "node-early", "a node begins with the first that it needs", "decrement_nodes",
        "pending = pending - fewer.ended", "pending = 0",
    ),
    sql(
        "graph-count", "nodes that end together count as one", "decrement_graphs",
        "pending - each.ended", "pending - 1",
    ),
    sql(
        "cancel-tag", "a cancelled run forgets who is at it", "end_runs",
        "error = :error, due_at", "session = null, error = :error, due_at",
    ),
    sql(
        "retry-early", "a retry doesn't wait for the worker", "retry_runs",
        "case when session is not null or (", "case when 1 = 0 or (",
    ),
    sql("unique-early", "a successor doesn't wait for the worker", "hold_successors", "where id", "where 1 = 0 and id"),
    sql(
        "children-count", "children that end together count as one", "resolve_child_waits",
        "set pending = pending - each.ended", "set pending = pending - 1",
    ),
    code("apart", "an end and its record are two transactions", AttemptStore, "_transaction", _apart),
    code(
        "transaction-unrecorded", "a transaction isn't recorded with its effect", StepTransactions,
        "_record", lambda *_: None,
    ),
    code("group-dropped", "a group isn't repeated after a loss", Committer, "_is_durable", lambda *_: True),
    code(
        "claim-forgotten", "claims whose answer was lost aren't handed back", Heartbeat,
        "_release", lambda *_: None,
    ),
    Bug(
        "charge-everybody", "a death is charged to all runs of the process",
        dict.fromkeys(("count_runs_of_dead", "count_runs_of_unknown"), (("count(*)", "min(1)"),)),
    ),
    sql(
        "isolate-early", "a run is isolated after its first death", "crash_runs",
        "deaths > 0", "deaths >= 0",
    ),
    sql(
        "isolation-lost", "an isolated run that waited for a permit runs beside others", "unpark_runs",
        "case when isolation is not null then 'isolated' end", "null",
    ),
    Bug(
        "overtake", "a run that becomes ready again keeps its place before those that were ready earlier",
        {
            "end_tree_attempts": (("{next_turn({schema}runs, {stamp})}", "turn"),),
            "wake_runs": (("{next_turn({schema}runs, {stamp})}", "turn"),),
            "promote_due_runs": (("{next_turn({schema}runs, due_at)}", "turn"),),
        },
    ),
    code("claim-stalled", "a worker whose event loop is blocked claims runs", Claimer, "tick", _claim_anyway),
    code(
        "renew-stalled", "a worker whose event loop is blocked keeps its runs for ever", StallHandler,
        "_free_runs", lambda *_: None,
    ),
    code(
        "keep-off", "the slower a claim, the longer the head of its lane isn't scanned: without a bound", ScanPolicy,
        "resume_s", _as_long_as_it_takes,
        test="tests/store/test_claim_cursor.py::test_after_a_slow_head_scan_claims_resume_for_a_while_but_never_longer_than_a_second",
    ),
    code(
        "answer-unmarked", "an answer of any process counts, whichever call it is for", pool,
        "read_frame", _any_answer, test="tests/processes/test_forked_copies.py",
    ),
)  # fmt: skip
BY_NAME = {bug.name: bug for bug in BUGS}
