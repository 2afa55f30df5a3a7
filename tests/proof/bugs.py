"""Bugs to plant in statements and code, to see whether the model and the simulation catch them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
from greenlet import getcurrent

from holdfast.client.interaction import AskFollower
from holdfast.database import migrate, statements
from holdfast.database.dialect import AGED_TURN_OFFSET, SqliteDialect
from holdfast.engine import batches
from holdfast.engine.attempt import Attempt, SlotPool
from holdfast.engine.batches import BatchCall
from holdfast.engine.durable.history import RecordedHistory
from holdfast.engine.durable.resident import ResidentFunction
from holdfast.engine.event_loop import StallHandler
from holdfast.engine.loops import batch_claimer
from holdfast.engine.loops.claimer import Claimer, CommitClaim
from holdfast.engine.loops.committer import Committer
from holdfast.engine.loops.heartbeat import Heartbeat
from holdfast.engine.loops.known_lanes import KnownLanes
from holdfast.engine.processes import framing, pool
from holdfast.engine.write_queue import PendingLogs
from holdfast.model.asks import AskAnswer
from holdfast.model.ids import new_id_text
from holdfast.policy.admission import LimitCounter
from holdfast.store import command_batch, propagation, topics
from holdfast.store.age_priority import Age
from holdfast.store.attempts import AttemptStore
from holdfast.store.claims import ScanPolicy
from holdfast.store.commands import Checkpoint, EmitCommand, WaitCommand
from holdfast.store.interaction import StoredAnswer
from holdfast.store.journal import Journal
from holdfast.store.step_transactions import StepTransactions

STREAM_TEST = "tests/store/test_stream_resets.py::test_readers_that_reconnect_have_exactly_what_counts"
RETRY_TEST = "tests/engine/test_retry_with_arguments.py"
LINES_TEST = "tests/engine/test_run_logs.py::test_a_commit_that_is_repeated_keeps_each_line_once"
Changes = dict[str, tuple[tuple[str, str], ...]]


@dataclass(frozen=True)
class Bug:
    """A plausible bug: replacements in SQL statements (`sql`), a patch of the code (`code`), or replacements in the
    files of migrations (`migration`)."""

    name: str
    what: str
    sql: Changes | None = None
    code: Callable[[], Any] | None = None
    migration: Changes | None = None
    in_the_model: bool = True
    """Whether the bug is in what the model specifies of the store, so that the model can catch it."""
    test: str | None = None
    """The test that has to catch the bug if neither the model nor the simulation covers the code."""
    local_clients: bool = False
    """Whether the simulation has to put the clients into the workers' processes."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Plant the bug in stores that are created in this context."""
        with ExitStack() as stack:
            if self.sql is not None:
                sources = statements.read_sources("holdfast.store.sql")
                unknown = self.sql.keys() - {source.name for source in sources}
                assert not unknown, f"{self.name}: statement {unknown} no longer exists"
                changed = [self._changed(source) for source in sources]
                stack.enter_context(mock.patch.object(statements, "read_sources", return_value=tuple(changed)))
            if self.code is not None:
                stack.enter_context(self.code())
            if self.migration is not None:
                stack.enter_context(mock.patch.object(migrate, "migrations", return_value=self._changed_migrations()))
            yield

    def _changed_migrations(self) -> tuple[migrate.Migration, ...]:
        """Replace the text in files of migrations."""
        assert self.migration is not None
        files = {each.name: each for each in migrate.migrations()}
        for name, changes in self.migration.items():
            text = files[name].text
            for old, new in changes:
                assert old in text, f"{self.name}: {name} no longer contains {old!r}"
                text = text.replace(old, new)
            files[name] = msgspec.structs.replace(files[name], text=text)
        return tuple(files.values())

    def _changed(self, source: statements.StatementSource) -> statements.StatementSource:
        """Replace the text, except in statements for PostgreSQL only."""
        assert self.sql is not None
        if source.name not in self.sql or source.only == "postgres":
            return source
        text = source.text
        for old, new in self.sql[source.name]:
            assert old in text, f"{self.name}: statement {source.name} no longer contains {old!r}"
            text = text.replace(old, new)
        return msgspec.structs.replace(source, text=text)


def sql(
    name: str, what: str, statement: str, old: str, new: str, test: str | None = None, in_the_model: bool = True
) -> Bug:
    return Bug(name, what, {statement: ((old, new),)}, test=test, in_the_model=in_the_model)


def code(
    name: str,
    what: str,
    where: Any,
    attribute: str,
    instead: Any,
    test: str | None = None,
    in_the_model: bool = True,
    local_clients: bool = False,
) -> Bug:
    patch = partial(mock.patch.object, where, attribute, instead)
    module = getattr(where, "__module__", where.__name__)
    in_the_store = module.startswith(("holdfast.store", "holdfast.policy"))
    in_the_model = in_the_model and in_the_store
    return Bug(name, what, code=patch, in_the_model=in_the_model, test=test, local_clients=local_clients)


def _admit_one_more(counter: LimitCounter) -> int | None:
    slots = _slots(counter)
    return None if slots is None else slots + 1


_slots = LimitCounter.slots


def _take_without_cost(counter: LimitCounter, now: int, cost: int = 1) -> None:
    _take(counter, now, min(cost, 1))


_take = LimitCounter.take


def _forget_adjustments(history: RecordedHistory, checkpoint: Checkpoint) -> None:
    if checkpoint.kind != "adjust":
        _add_checkpoint(history, checkpoint)


def _forget_values(history: RecordedHistory, checkpoint: Checkpoint) -> None:
    if checkpoint.kind != "set":
        _add_checkpoint(history, checkpoint)


def _forget_spends(history: RecordedHistory, checkpoint: Checkpoint) -> None:
    if checkpoint.kind != "spend":
        _add_checkpoint(history, checkpoint)


_add_checkpoint = RecordedHistory._add


def _without_transaction(attempts: AttemptStore, purpose: str, work: Callable[[Any], Any]) -> Any:
    return work(attempts._autocommit(purpose))


_early_events: dict[Any, dict[str, str]] = {}
_write, _lock_events = Journal.write, command_batch.lock_events


def _read_events_first(journal: Journal, session: str, commands: Any, *claim: Any) -> Any:
    """Read events in a separate transaction, before the one that locks them and registers the wait."""
    events = {(each.tenant, each.name) for each in commands if isinstance(each, EmitCommand)}
    events |= {
        (each.tenant, str(each.name)) for each in commands if isinstance(each, WaitCommand) and each.kind == "event"
    }
    if events:
        _early_events[getcurrent()] = journal._transaction("commit", lambda tx: _lock_events(tx, events))
    return _write(journal, session, commands, *claim)


def _events_read_early(_tx: Any, events: Any) -> dict[str, str]:
    return _early_events.get(getcurrent(), {})


@contextmanager
def _read_events_early() -> Iterator[None]:
    with (
        mock.patch.object(Journal, "write", _read_events_first),
        mock.patch.object(command_batch, "lock_events", _events_read_early),
    ):
        yield


_enqueue_hooks = propagation.enqueue_hooks
_finalize = Attempt.finalize


def _enqueue_hooks_twice(tx: Any, ends: Any) -> None:
    _enqueue_hooks(tx, ends)
    _enqueue_hooks(tx, ends)


def _finalize_without_hooks(attempt: Attempt, *args: Any) -> Any:
    attempt.has_hooks = False
    return _finalize(attempt, *args)


_insert_runs = topics.insert_runs


def _insert_runs_twice(tx: Any, new: Any) -> None:
    _insert_runs(tx, new)
    _insert_runs(tx, [msgspec.structs.replace(run, id=new_id_text()) for run in new])


def _take_any_answer(follower: AskFollower, answers: Mapping[str, AskAnswer | None]) -> None:
    for answer in filter(None, answers.values()):
        follower.known = StoredAnswer(follower.ask.name, answer.answer, answer.text, "running")


_tick = Claimer.tick


def _claim_anyway(claimer: Claimer) -> float:
    with mock.patch.object(claimer, "_monitor", SimpleNamespace(is_stalled=False)):
        return _tick(claimer)


_begin_commit_claim = Claimer.begin_commit_claim


def _claim_in_commit_anyway(claimer: Claimer, *given: Any, **options: Any) -> CommitClaim | None:
    with mock.patch.object(claimer, "_monitor", SimpleNamespace(is_stalled=False)):
        return _begin_commit_claim(claimer, *given, **options)


_resume_s = ScanPolicy.resume_s


def _resume_without_bound(policy: ScanPolicy, head_scan_s: float, *, crowded: bool) -> float:
    return _resume_s(replace(policy, max_head_interval_s=math.inf), head_scan_s, crowded=crowded)


def _accept_any_reply(file: int, kind: bytes, max_bytes: int, tag: bytes, more: Callable[[bool], bool]) -> bytes | None:
    header = framing._read(file, len(tag) + len(kind) + 4, more, started=False)
    return None if header is None else framing._read(file, int.from_bytes(header[-4:]), more, started=True)


def _group_any_tenant(attempt: Attempt) -> tuple[str, None, SlotPool | None]:
    return attempt.task.name, None, attempt.slots


@contextmanager
def _mix_tenants() -> Iterator[None]:
    with (
        mock.patch.object(batches, "batch_group", _group_any_tenant),
        mock.patch.object(batch_claimer, "batch_group", _group_any_tenant),
    ):
        yield


_is_durable = Committer._is_durable


def _forget_lines(committer: Committer, write: Any, durable: Any) -> bool:
    return isinstance(write, PendingLogs) or _is_durable(committer, write, durable)


def enqueue_function(name: str, what: str, old: str, new: str, test: str) -> Bug:
    """Plant a bug in `holdfast.enqueue` on PostgreSQL."""
    test = f"tests/transactions/test_enqueue_function.py::{test}"
    return Bug(name, what, migration={"0033_enqueue_function.sql": ((old, new),)}, test=test)


ALIVE = "lease_until > {clock}"

BUGS = (
    sql("claim-dead", "a session claims after its lease expired", "claim", ALIVE, "lease_until > 0"),
    Bug(
        "claim-held", "held runs are claimed",
        {
            "pick_claimable": ((" and x.held is null", ""),),
            "claim": ((" and held is null", ""), (" and x.held is null", "")),
        },
    ),
    sql(
        "claim-order", "runs are claimed in reverse order", "pick_claimable",
        "order by x.priority desc, x.turn, x.seq", "order by x.seq desc",
    ),
    sql("claim-fence", "a claim doesn't raise the fence", "claim", "fence = fence + 1", "fence = fence"),
    Bug(
        "claim-resumed", "resuming counts as a new attempt",
        {
            "pick_claimable": (("r.attempt + 1 - r.resumed", "r.attempt + 1"),),
            "claim": (("attempt + 1 - resumed", "attempt + 1"),),
        },
    ),
    sql(
        "record-fence", "a checkpoint is written without its fence", "record_checkpoints",
        " and r.fence = each.fence", "",
    ),
    sql(
        "record-lease", "a checkpoint is written after the lease expired", "record_checkpoints",
        ALIVE, "lease_until > 0",
    ),
    sql("end-fence", "an end is written without its fence", "end_attempts", " and {schema}runs.fence = each.fence", ""),
    sql(
        "end-state", "a worker ends a cancelled run again", "end_attempts",
        "and {schema}runs.state = 'running'", "",
    ),
    Bug(
        "end-lease", "ends are written after the lease expired",
        dict.fromkeys(("lock_session", "end_attempts"), ((ALIVE, "lease_until > 0"),)),
    ),
    sql(
        "lease-off-by-one", "a lease is valid one microsecond too long", "renew_session",
        ALIVE, "lease_until >= {clock}",
    ),
    sql("lease-renewed", "an expired lease is renewed", "renew_session", f" and {ALIVE}", ""),
    Bug(
        "recover-live", "sessions are recovered a second too early",
        {
            "find_dead_sessions": (("lease_until <= {clock}", "lease_until <= {clock} + 1000000"),),
            "lock_dead_sessions": (("lease_until <= {clock}", "lease_until <= {clock} + 1000000"),),
        },
    ),
    sql(
        "recover-counts", "a run may crash once more than `max_crashes` allows", "crash_runs",
        "crashes >= max_crashes", "crashes > max_crashes",
    ),
    sql(
        "recover-permits", "permits aren't returned", "return_permits",
        "used - excluded.touched_at else", "used else",
    ),
    sql(
        "wake-missed", "an outcome that arrived before the suspension is missed", "end_tree_attempts",
        "when each.kind = 'waiting' and exists", "when 1 = 0 and exists",
    ),
    sql("event-unseen", "an emitted event is missed", "read_emitted", "emitted_at is not null", "1 = 0"),
    Bug("event-early", "an event is read before it is locked", code=_read_events_early),
    sql(
        "wait-extended", "a resolved wait is resolved again", "resolve_waits",
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
        "due-early", "scheduled runs start half a second too early", "promote_due_runs",
        "due_at <= {now}", "due_at <= {now} + 500000",
    ),
    sql(
        "pause-unheld", "paused runs stay in the ready index", "find_ready_paused",
        "paused_at is not null and", "paused_at is null and",
        test="tests/store/test_pauses.py::test_a_paused_run_is_not_claimed_however_it_becomes_ready",
    ),
    sql(
        "pause-parked", "a paused run keeps its place at a full limit, and nobody looks after it when it is resumed",
        "pause_runs", "(held is null or held = 'full')", "held is null",
    ),
    sql(
        "pause-kept", "a resumed run stays held", "resume_runs",
        "case when held = 'paused' then case when isolation is not null then 'isolated' end else held end", "held",
    ),
    sql("pause-overtaken", "runs of paused tenants are picked", "pick_claimable", " and {claimable(x)}", ""),
    sql(
        "resume-lost", "a resumed tenant's held runs stay held", "release_tenant_runs", "limit 1000", "limit 0",
        test="tests/store/test_pauses.py::test_a_resume_that_died_half_way_is_continued_by_the_timers",
    ),
    sql(
        "schedule-refired", "a schedule fires passed slots after an update", "update_schedules",
        "then each.next_at else", "then each.next_at - 60000000 else",
        test="tests/store/test_schedule_changes.py::test_an_update_gives_no_slot_a_second_run",
    ),
    sql(
        "slot-twice", "a slot that an operator filled fires again", "find_fired_slots", "s.asked = 0", "s.asked = 2",
        test="tests/store/test_schedule_changes.py::test_a_backfilled_slot_that_is_due_does_not_fire_again",
    ),
    sql(
        "overlap-early", "a buffered run starts while a cancelled one still executes", "pick_buffered_schedules",
        "r.finished_at is null or r.session is not null", "r.finished_at is null",
        test="tests/store/test_schedule_changes.py::test_cancel_running_cancels_and_waits_until_the_code_has_stopped",
    ),
    sql("message-twice", "a message is taken twice", "first_unread_message", " and taken_by is null", ""),
    sql(
        "message-skipped", "a receive takes a later message before an earlier one", "first_unread_message",
        "order by n limit 1", "order by n desc limit 1", in_the_model=False,
    ),
    sql(
        "next-skipped", "`ctx.next` misses a message that was published before it waits again", "first_unread_message",
        "order by n limit 1", "order by n limit case when substr(:topic, 1, 1) = char(30) then 0 else 1 end",
        in_the_model=False,
    ),
    sql(
        "try-repeated", "a failed try of a step is recorded again after a lost reply", "find_failed_tries",
        "h.data = each.data", "1 = 0",
    ),
    sql("message-repeated", "a message is sent again after a lost reply", "find_sent_message", "limit 1", "limit 0"),
    code(
        "reply-lost", "an ask is handled, but its reply isn't stored", command_batch, "answer_asks", lambda *_: list,
        in_the_model=False,
    ),
    sql(
        "ask-twice", "a function that restarts handles answered asks again", "return_messages_of_restarted",
        "ask is not null and answered_at is null", "ask is not null", in_the_model=False,
    ),
    sql(
        "ask-overtaken", "a function that serves receives a later ask before an earlier one", "first_unread_ask",
        "order by n limit 1", "order by n desc limit 1", in_the_model=False,
    ),
    code(
        "answer-mixed", "a caller in the worker's process gets the answer to another ask", AskFollower,
        "on_local_write", _take_any_answer, local_clients=True,
    ),
    code(
        "value-back", "a replay sets old values again", RecordedHistory, "_add", _forget_values,
        test="tests/durable/test_interaction_crashes.py::test_a_crash_sets_no_value_again_and_none_goes_back",
    ),
    code(
        "spend-twice", "a replay spends again", RecordedHistory, "_add", _forget_spends,
        test="tests/budgets/test_budgets.py::test_what_a_run_spends_is_added_up_exactly_and_once",
    ),
    sql(
        "spend-lost", "what is spent again isn't added to the total", "add_spending",
        "{schema}budget_totals.total + excluded.total end", "{schema}budget_totals.total end",
    ),
    sql(
        "spend-unwaited", "a raise wakes no run that waits for the budget", "find_budget_waiters",
        "limit 501", "limit 0",
    ),
    sql(
        "budget-unrenewed", "what was spent in an earlier window counts", "add_spending",
        "then excluded.spent\n", "then {schema}budget_totals.spent + excluded.spent\n",
        test="tests/budgets/test_budgets.py::test_a_budget_with_a_window_starts_again_with_the_next_one",
    ),
    code("limit-off-by-one", "a limit admits one run too many", LimitCounter, "slots", _admit_one_more),
    code(
        "weight-ignored", "a start counts 1, whatever it costs", LimitCounter, "take", _take_without_cost,
        test="tests/limits/test_weighted.py::test_a_start_counts_its_cost",
    ),
    sql(
        "step-permit-leaked", "the permits of a step aren't returned when its worker dies", "drop_step_permits",
        "where run", "where 1 = 0 and run",
    ),
    sql(
        "step-permit-twice", "a step takes its permits again after a lost reply", "find_step_permits",
        "p.run = each.run and", "1 = 0 and p.run = each.run and",
        test="tests/store/test_step_permits.py::test_a_step_takes_its_permits_once_although_the_reply_got_lost",
    ),
    code(
        "adjust-twice", "an adjustment counts again in a replay", RecordedHistory, "_add", _forget_adjustments,
        test="tests/limits/test_step_limits.py::test_a_weighted_step_takes_its_cost_and_adjusts_it_once",
    ),
    sql(
        "topic-lost", "a subscription ends at once when its workers restart", "list_subscriptions",
        "orphaned = 0 or orphaned_at > {now} - cast(:absence as bigint)", "orphaned = 0 and :absence > 0",
    ),
    code(
        "topic-twice", "a subscriber gets a message twice", topics,
        "insert_runs", _insert_runs_twice,
    ),
    sql(
        "topic-repeated", "a publish whose response was lost is repeated", "find_publication",
        "where id", "where 1 = 0 and id", in_the_model=False,
    ),
    sql(
        "inbox-lost", "a message that comes between two waits is lost", "add_published_messages",
        "each.payload, {now}, each.taken_by", "each.payload, {now}, coalesce(each.taken_by, 'lost')",
    ),
    sql(
        "node-early", "a node starts after its first dependency", "decrement_nodes",
        "pending = pending - fewer.ended", "pending = 0",
    ),
    sql(
        "graph-count", "nodes that end together are counted once", "decrement_graphs",
        "pending - each.ended", "pending - 1",
    ),
    sql(
        "cancel-session", "a cancelled run loses its session", "end_runs",
        "error = :error, due_at", "session = null, error = :error, due_at",
    ),
    sql(
        "retry-early", "a retry starts before the worker released the run", "retry_runs",
        "when session is not null or (", "when 1 = 0 or (",
    ),
    sql(
        "unique-early",
        'the next run of a unique name starts before the worker released the previous one: if_taken="cancel" runs two',
        "hold_successors", "where id", "where 1 = 0 and id",
    ),
    sql(
        "queue-early", "a queued run starts while the code of its predecessor is still running", "start_queued_runs",
        "held = 'quiescing'", "held = null",
    ),
    sql(
        "replace-started", "a run that has started gets the arguments of a newer call", "lock_unstarted",
        "and r.claimed_at is null", "",
    ),
    sql(
        "start-by-early", "a run is cancelled although its time to start has not passed", "pick_unstarted_runs",
        "start_by <= {now}", "start_by <= {now} + 1000000",
    ),
    sql(
        "start-by-again", "a run that started in time is not claimed again", "pick_claimable",
        "r.start_by <= {now} and r.started_at is null", "r.start_by <= {now}",
    ),
    code(
        "batch-acknowledged", "the failed items of a batch are done", BatchCall,
        "ends_after_error", lambda _, attempts, error: BatchCall.ends_after(attempts, getattr(error, "results", None)),
    ),
    Bug(
        "batch-mixed", "a batch by tenant has runs of several tenants", code=_mix_tenants,
        test="tests/engine/test_task_batches.py::test_tenants_are_apart_if_the_batch_says_so",
    ),
    sql(
        "retry-arguments", "a run that is retried with other arguments gets the old ones", "replace_arguments",
        "args = cast(:args as text)", "args = coalesce(args, cast(:args as text))",
        test=f"{RETRY_TEST}::test_a_failed_job_is_retried_with_other_arguments",
    ),
    sql(
        "retry-kept", "a function that is retried with other arguments keeps what it recorded with the old ones",
        "replace_arguments", "generation = generation + 1", "generation = generation",
        test=f"{RETRY_TEST}::test_a_durable_function_starts_over_and_keeps_nothing",
    ),
    code(
        "line-lost", "the log lines of a commit that failed are dropped", Committer, "_is_durable", _forget_lines,
        test=f"{LINES_TEST}[sqlite-commit]",
    ),
    sql(
        "line-twice", "the log lines of a commit whose reply was lost are written again", "add_logs",
        "each.fence, each.n, each.attempt",
        "each.fence, each.n + (select count(*) from {schema}logs l where l.run = each.run), each.attempt",
        test=f"{LINES_TEST}[sqlite-reply]",
    ),
    enqueue_function(
        "sql-unique-ignored", "an enqueue from SQL ignores its unique name",
        "full_name := owner || ',' || cast(to_json(unique_name) as text) || ']'", "full_name := null",
        "test_a_unique_name_returns_the_unfinished_run",
    ),
    enqueue_function(
        "sql-key-ignored", "an enqueue from SQL ignores the arguments that its key was used with",
        "if held_digest <> digest then", "if false then",
        "test_a_key_creates_one_run_also_with_64_callers_at_once",
    ),
    enqueue_function(
        "sql-unchecked", "an enqueue from SQL accepts invalid names", "perform {schema}check_name(task, 'task');", "",
        "test_invalid_input_is_refused_with_its_name",
    ),
    sql(
        "debounce-oldest", "a debounced run keeps the arguments of the first call", "replace_unstarted",
        "args = given.args", "args = {schema}runs.args",
    ),
    sql(
        "debounce-metadata", "the metadata of a later call is lost", "set_metadata",
        "do update set value = excluded.value", "do nothing",
    ),
    sql(
        "key-kept", "a key is still taken after its key_ttl", "find_keys",
        "k.expires_at > {now}", "k.expires_at > 0",
    ),
    sql(
        "update-early", "a run whose time was changed starts at once", "update_run",
        "case when cast(:run_at as bigint) is null then state else 'scheduled' end", "state",
    ),
    sql(
        "debounce-started", "a call replaces the arguments of a run that has started", "lock_debounced",
        "and r.started_at is null", "",
    ),
    sql(
        "debounce-unbounded", "calls postpone a debounced run beyond its max_delay", "replace_unstarted",
        "case when each.latest < {stamp} + each.delay then each.latest else {stamp} + each.delay end",
        "{stamp} + each.delay",
    ),
    sql(
        "children-count", "children that end together are counted once", "resolve_child_waits",
        "set pending = pending - each.ended", "set pending = pending - 1",
    ),
    code(
        "apart", "an end and its history entry are two transactions", AttemptStore,
        "_transaction", _without_transaction,
    ),
    code(
        "transaction-unrecorded", "a transaction isn't recorded with its effect", StepTransactions,
        "_record", lambda *_: None,
    ),
    code("group-dropped", "a batch isn't repeated after a lost connection", Committer, "_is_durable", lambda *_: True),
    code(
        "claim-forgotten", "claims whose reply was lost aren't released", Heartbeat,
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
        "overtake", "a run that becomes ready again stays ahead of runs that were ready earlier",
        {
            "end_tree_attempts": (("{next_turn({schema}runs, {stamp})}", "turn"),),
            "wake_runs": (("{next_turn({schema}runs, {stamp})}", "turn"),),
            "promote_due_runs": (("{next_turn({schema}runs, due_at)}", "turn"),),
        },
    ),
    code(
        "slots-exceeded", "a queue gets one slot more than its own", SlotPool, "free",
        lambda pool: pool.slots + 1 - pool.busy,
    ),
    code(
        "label-ignored", "a worker claims runs whose label it doesn't have", KnownLanes,
        "served", lambda _, tasks: tasks,
    ),
    sql(
        "limit-redeclared", "a deploy undoes what an operator has set for a limit", "declare_limits",
        "rate = case when s.set_at is null then excluded.rate else s.rate end", "rate = excluded.rate",
        test="tests/limits/test_run_time.py::test_set_values_win_until_they_are_reset_and_survive_deploys",
    ),
    sql(
        "keep-same", "a failed run is kept no longer than one that is done", "end_attempts",
        "coalesce(keep_failed, keep)", "keep",
        test="tests/store/test_timers.py::test_unsuccessful_runs_have_a_retention_of_their_own",
    ),
    sql(
        "prune-left", "rows of the first of the pruned runs stay", "find_details",
        "x.run >= cast(:first", "x.run > cast(:first",
        test="tests/store/test_tree_pruning.py::test_all_rows_of_the_first_the_last_and_any_other_run_of_a_batch_are_deleted",
    ),
    Bug(
        "preference-ignored", "a worker takes runs from one that has the label that their task prefers",
        code=partial(mock.patch.object, KnownLanes, "unpreferred", lambda *_: set()),
    ),
    sql(
        "preference-kept", "runs wait for a busy worker with the preferred label as long as it lives",
        "find_waiting_lanes", "<= {now} - cast(:age as bigint)", "<= -cast(:age as bigint)",
    ),
    code(
        "age-starves", "a new run of a higher priority always comes before an old one", Age, "of",
        classmethod(lambda age, priority, interval: age(AGED_TURN_OFFSET + priority * 10**15, priority, interval)),
    ),
    sql(
        "age-unchanged", "a changed priority has no effect on a run whose priority grows with its age",
        "update_aged_priority", "turn = turn + cast(:change as bigint)", "turn = turn",
    ),
    Bug(
        "age-forgotten", "a run that becomes ready again loses what its priority is worth",
        code=lambda: mock.patch.object(SqliteDialect, "_age_shift", staticmethod(lambda _run: str(AGED_TURN_OFFSET))),
    ),
    code("claim-stalled", "a worker whose event loop is blocked claims runs", Claimer, "tick", _claim_anyway),
    code(
        "commit-claim-stalled", "commits claim although the worker's event loop is blocked", Claimer,
        "begin_commit_claim", _claim_in_commit_anyway, local_clients=True,
    ),
    code(
        "renew-stalled", "a worker whose event loop is blocked keeps its runs forever", StallHandler,
        "_free_runs", lambda *_: None,
    ),
    code(
        "resident-stale", "a suspended function in memory continues although another worker had its run",
        ResidentFunction, "is_current", lambda *_: True,
        test="tests/durable/test_resident.py::test_a_copy_whose_run_another_worker_had_is_discarded",
    ),
    code(
        "keep-off", "after a slow claim, the head of the lane isn't scanned for an unbounded time", ScanPolicy,
        "resume_s", _resume_without_bound,
        test="tests/store/test_claim_cursor.py::test_after_a_slow_head_scan_claims_resume_for_a_while_but_never_longer_than_a_second",
    ),
    code("hook-lost", "the end of a run enqueues no hooks", propagation, "enqueue_hooks", lambda *_: None),
    code("hook-twice", "the end of a run enqueues its hooks twice", propagation, "enqueue_hooks", _enqueue_hooks_twice),
    code(
        "hook-alone", "a job that ends alone, with one statement, enqueues no hooks", Attempt, "finalize",
        _finalize_without_hooks,
    ),
    sql(
        "chunk-repeated", "a step that runs again repeats its chunks to readers without a reset", "list_chunks",
        "when coalesce(b.fence, -b.attempt) <> coalesce(c.fence, -c.attempt) then 1", "when 1 = 2 then 1",
        in_the_model=False,
    ),
    sql(
        "chunk-kept", "after a rewind, readers keep what the body wrote before", "list_chunks",
        "case when b.serial >= c.serial then 1 else 0 end", "0", test=STREAM_TEST,
    ),
    sql(
        "chunk-dropped", "after a retry of a step, readers lose what it wrote before a restart", "list_chunks",
        "k.generation <> p.generation or ", "", test=STREAM_TEST,
    ),
    sql(
        "chunk-twice", "a chunk is stored again after its reply got lost", "add_chunks",
        "c.serial = each.serial and", "c.serial = -1 and",
    ),
    code(
        "answer-unmarked", "a reply from any process is accepted, whichever call it answers", pool,
        "read_frame", _accept_any_reply, test="tests/processes/test_forked_copies.py",
    ),
)  # fmt: skip
BY_NAME = {bug.name: bug for bug in BUGS}
