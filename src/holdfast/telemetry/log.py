"""Every line that Holdfast logs, in the form `event first=1 then="its fields"`.

Lines about a run have the fields `task`, `run` and `attempt` and carry them as attributes of the record too, for
handlers that write JSON (`log_format.py`). Lines about failures carry `trace_id` and `span_id` too if the attempt has a
span, because they are logged after it has ended. Lines about workers carry `session`. Never logged: arguments, results,
passwords.

Levels: ERROR if an operator must act (a run failed permanently), WARNING to look into soon (retries, recovery), INFO
for the lifecycle of workers, DEBUG for each run. The logger is silent unless the application configures it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.errors import ErrorInfo

logger = logging.getLogger("holdfast")
logger.addHandler(logging.NullHandler())


# Attempts


def attempt_done(run: str, task: str, attempt: int) -> None:
    _log_attempt(logging.DEBUG, "run done", run, task, attempt)


def attempt_released(run: str, task: str, attempt: int) -> None:
    _log_attempt(logging.DEBUG, "run released", run, task, attempt, {"reason": "worker stopping"})


def attempt_failed(run: str, task: str, attempt: int, error: ErrorInfo, retry_in: float | None, **span: str) -> None:
    if error.code == "bad_arguments":  # the message may show their values
        fields: dict[str, Any] = {"error": "the stored arguments don't match the task's signature"}
        _log_attempt(logging.ERROR, "run failed permanently", run, task, attempt, fields, **span)
    elif retry_in is None:
        _log_attempt(logging.ERROR, "run failed permanently", run, task, attempt, {"error": error}, **span)
    else:
        fields = {"error": error, "retry_in": f"{retry_in:.1f}s"}
        _log_attempt(logging.WARNING, "run failed", run, task, attempt, fields, **span)


def attempt_crashed(run: str, task: str, attempt: int, error: object, *, final: bool, **span: str) -> None:
    if final:
        fields: dict[str, Any] = {"reason": "too many crashes", "error": error}
        _log_attempt(logging.ERROR, "run failed permanently", run, task, attempt, fields, **span)
    else:
        _log_attempt(logging.WARNING, "run crashed and requeued", run, task, attempt, {"error": error}, **span)


def options_unreadable(run: str, task: str, attempt: int, error: object) -> None:
    event = "stored options are unreadable, using the task's own"
    _log_attempt(logging.WARNING, event, run, task, attempt, {"error": error})


def hooks_unreadable(run: str, error: object) -> None:
    _log(logging.ERROR, "hook not enqueued", {"run": run, "error": error})


def thread_not_started(run: str, task: str, attempt: int, error: object) -> None:
    fields: dict[str, Any] = {"reason": "cannot start a thread", "error": error}
    _log_attempt(logging.ERROR, "run released", run, task, attempt, fields)


def result_discarded(run: str, task: str, attempt: int, **span: str) -> None:
    fields: dict[str, Any] = {"reason": "run cancelled or lease lost"}
    _log_attempt(logging.WARNING, "result discarded", run, task, attempt, fields, **span)


def attempt_suspended(run: str, task: str, attempt: int, kind: str) -> None:
    _log_attempt(logging.DEBUG, "run suspended" if kind == "waiting" else "run restarted", run, task, attempt)


def attempt_waiting_for_database(run: str, task: str, attempt: int, error: object) -> None:
    _log_attempt(logging.WARNING, "run is waiting for the database", run, task, attempt, {"error": error})


def compensation_started(run: str, task: str, attempt: int, error: ErrorInfo, **span: str) -> None:
    _log_attempt(logging.ERROR, "run failed, compensating", run, task, attempt, {"error": error}, **span)


def compensation_finished(run: str, task: str, attempt: int, **span: str) -> None:
    _log_attempt(logging.WARNING, "run compensated", run, task, attempt, None, **span)


def step_retrying(run: str, task: str, attempt: int, step: str, number: int, error: ErrorInfo, retry_in: float) -> None:
    fields: dict[str, Any] = {"step": step, "try": number, "error": error, "retry_in": f"{retry_in:.1f}s"}
    _log_attempt(logging.INFO, "step failed", run, task, attempt, fields)


def step_failed(run: str, task: str, attempt: int, step: str, tries: int, error: ErrorInfo) -> None:
    fields: dict[str, Any] = {"step": step, "tries": tries, "error": error}
    _log_attempt(logging.INFO, "step failed permanently", run, task, attempt, fields)


def step_try_not_recorded(run: str, task: str, attempt: int, step: str, error: object) -> None:
    fields: dict[str, Any] = {"step": step, "error": error}
    _log_attempt(logging.WARNING, "failed try of a step could not be recorded", run, task, attempt, fields)


def replay_drifted(
    run: str, task: str, attempt: int, steps: Iterable[str], renamed: Mapping[str, str], **span: str
) -> None:
    changed = [step for step in steps if step not in renamed]
    if changed:
        hint = "do the arguments include the current time or a random value?"
        event = "step arguments differ from the recorded ones, steps executed again"
        _log_attempt(logging.WARNING, event, run, task, attempt, {"steps": ", ".join(changed), "hint": hint}, **span)
    for old, new in renamed.items():
        fields: dict[str, Any] = {"step": new, "recorded": old, "hint": f'if it was renamed, give it name="{old}"'}
        _log_attempt(logging.WARNING, "step executed again under another name", run, task, attempt, fields, **span)


def message_set_aside(run: str, task: str, attempt: int, topic: str, error: str) -> None:
    """Report a message that doesn't have the expected type. The error names the mismatch, not the payload."""
    event = "message set aside, it does not have the expected type"
    _log_attempt(logging.WARNING, event, run, task, attempt, {"topic": topic, "error": error})


def event_set_aside(run: str, task: str, attempt: int, name: str, error: str) -> None:
    """Report an event that doesn't have the expected type. The error names the mismatch, not the payload."""
    event = "event set aside, it does not have the expected type"
    hint = "delete the emit with `holdfast events clear` and emit another payload"
    _log_attempt(logging.WARNING, event, run, task, attempt, {"awaited": name, "error": error, "hint": hint})


def ask_refused(run: str, task: str, attempt: int, ask: str, error: str) -> None:
    """Report an ask that doesn't have the expected type. The error names the mismatch, not the payload."""
    event = "ask rejected, it does not have the expected type"
    _log_attempt(logging.WARNING, event, run, task, attempt, {"ask": ask, "error": error})


def agent_inside_step(agent: str, step: str, advice: str) -> None:
    """Report an agent that runs in a step: a crash repeats all of its calls."""
    event = "agent runs inside a step, its calls are not recorded one by one"
    _log(logging.WARNING, event, agent=agent, step=step, advice=advice)


def attempt_abandoned(run: str, task: str, attempt: int, lost_threads: int, **span: str) -> None:
    event = "attempt abandoned, the task ignored cancellation"
    _log_attempt(logging.WARNING, event, run, task, attempt, {"lost_threads": lost_threads}, **span)


def attempt_still_running(run: str, task: str, attempt: int, **span: str) -> None:
    event = "attempt cannot be stopped, its result will be discarded"
    _log_attempt(logging.WARNING, event, run, task, attempt, None, **span)


def result_not_stored(run: str, task: str, attempt: int, error: ErrorInfo, **span: str) -> None:
    _log_attempt(logging.ERROR, "result could not be stored", run, task, attempt, {"error": error}, **span)


def lines_not_stored(run: str, task: str, attempt: int, error: object) -> None:
    _log_attempt(logging.WARNING, "log lines of a run could not be stored", run, task, attempt, {"error": error})


def deadline_exceeded(run: str, task: str, attempt: int) -> None:
    _log_attempt(logging.ERROR, "run failed permanently", run, task, attempt, {"error": "deadline exceeded"})


def _log_attempt(
    level: int, event: str, run: str, task: str, attempt: int, fields: dict[str, Any] | None = None, **span: str
) -> None:
    """Log an event of an attempt. `span`: the ids of its span, as attributes of the record."""
    if logger.isEnabledFor(level):  # first: a busy worker finishes thousands of runs per second
        about: dict[str, Any] = {"task": task, "run": run, "attempt": attempt}
        _log(level, event, about | span, **about, **(fields or {}))


# Workers


def worker_started(session: str, database: str, tasks: int, concurrency: int, threads: int) -> None:
    fields: dict[str, Any] = {"session": session}
    _log(
        logging.INFO, "worker started", fields, **fields, database=database, tasks=tasks, concurrency=concurrency,
        threads=threads,
    )  # fmt: skip


def worker_without_tasks(session: str) -> None:
    hint = "it executes no run; import the modules that declare tasks, or name them in Holdfast(include=[...])"
    _log(logging.WARNING, "worker has no tasks", {"session": session}, session=session, hint=hint)


def startup_waiting_for_database(error: object, tries: int, pause: float) -> None:
    _log(logging.WARNING, "worker is waiting for its database", error=error, attempts=tries, retry_in=f"{pause:.1f}s")


def startup_database_available(tries: int) -> None:
    _log(logging.INFO, "database available", failed_attempts=tries)


def startup_aborted() -> None:
    _log(logging.INFO, "worker stopped before it had started")


def worker_stopping(session: str, running: int, grace: float) -> None:
    fields: dict[str, Any] = {"session": session, "running": running}
    if running:
        fields |= {"grace": f"{grace:g}s", "hint": "a second signal releases the runs at once"}
    _log(logging.INFO, "worker stopping", {"session": session}, **fields)


def worker_stopped(session: str, finished: int, released: int) -> None:
    fields: dict[str, Any] = {"session": session}
    _log(logging.INFO, "worker stopped", fields, **fields, finished=finished, released=released)


def session_lost(session: str, why: str, running: Iterable[str]) -> None:
    fields: dict[str, Any] = {"session": session}
    _log(logging.WARNING, "session lost", fields, **fields, reason=why, stopped=", ".join(running))


def heartbeat_delayed(seconds: float, running: Iterable[str]) -> None:
    hint = 'a task is holding the GIL; use run_in="process" for CPU-bound work'
    _log(logging.WARNING, "heartbeat delayed", duration=f"{seconds:.1f}s", running=", ".join(running), hint=hint)


def event_loop_stalled(seconds: float, blocker: str, released: int) -> None:
    fields: dict[str, Any] = {"duration": f"{seconds:.1f}s", "blocker": blocker, "released": released}
    _log(logging.WARNING, "event loop stalled, claiming paused", **fields)


def event_loop_blocked(seconds: float, blocker: str, stack: str, runs: int) -> None:
    """Log with `stack`, the stack of the blocking call, which handlers print below the line like `stack_info`."""
    if not logger.isEnabledFor(logging.ERROR):
        return
    template, values = _format(
        "event loop blocked, ending its attempts",
        {
            "duration": f"{seconds:.1f}s",
            "blocker": blocker,
            "runs": runs,
            "hint": "use async I/O or a `def` task, which runs in a thread; the stack of the blocking call follows",
        },
    )
    logger.handle(logger.makeRecord(logger.name, logging.ERROR, __file__, 0, template, values, None, sinfo=stack))


def threads_lost(lost: int, threads: int) -> None:
    hint = "tasks ignored their timeout or cancellation; set timeouts on blocking calls"
    _log(logging.ERROR, "threads lost", lost=lost, threads=threads, hint=hint)


def memory_not_limited(limit: int) -> None:
    _log(logging.WARNING, "memory limit ignored", limit=limit, reason="macOS can't limit the memory of a process")


def executor_broken(executor: str, call: str, error: object) -> None:
    event = "executor broken, repeating the call alone"
    _log(logging.WARNING, event, executor=executor, call=call, error=error)


def executor_not_closed(executor: str, error: object) -> None:
    _log(logging.WARNING, "executor could not be shut down", executor=executor, error=error)


def worker_restarting(reason: str) -> None:
    _log(logging.ERROR, "worker restarting", reason=reason)


def isolated_runs_started(runs: int, others: int) -> None:
    event = "starting isolated runs to find the one that crashes its worker"
    _log(logging.WARNING, event, isolated=runs, other_running=others)


def unknown_runs_released(runs: int) -> None:
    _log(logging.WARNING, "released runs that were claimed but never received", runs=runs)


def worker_lost(session: str, name: str | None, requeued: int, failed: int, *, excused: bool) -> None:
    """Say what became of the runs of a worker whose lease expired."""
    fields: dict[str, Any] = {} if name is None else {"worker": name}
    fields |= {"session": session, "runs_requeued": requeued, "runs_failed": failed}
    reason = "the database did not answer" if excused else "its process died, was frozen or lost the database"
    _log(logging.WARNING, "worker lost", fields, **fields, reason=reason)


def drain_left_runs(runs: int, reasons: Iterable[str]) -> None:
    _log(logging.WARNING, "drain left ready runs", runs=runs, reasons="; ".join(reasons))


def runs_pruned(runs: int) -> None:
    _log(logging.INFO, "finished runs pruned", runs=runs)


def events_pruned(events: int) -> None:
    _log(
        logging.INFO,
        "emitted events pruned",
        events=events,
        hint="a run that waits for one of them waits for a new emit",
    )


def lanes_retired(lanes: int) -> None:
    _log(logging.INFO, "unused lanes collected", lanes=lanes)


def late_runs_moved(runs: int, queue: str, task: str) -> None:
    _log(logging.WARNING, "runs moved out of a collected lane", runs=runs, queue=queue, task=task)


def payload_large(what: str, size: int) -> None:
    hint = "it is stored and read as a whole; consider storing it elsewhere and passing a reference"
    _log(logging.WARNING, "large payload", payload=what, bytes=size, hint=hint)


def encryption_keys_not_refreshed(tenant: str | None, error: BaseException) -> None:
    fields: dict[str, Any] = {"tenant": tenant, "error": type(error).__name__}
    _log(logging.WARNING, "encryption keys not refreshed, using those loaded before", fields, **fields)


# Schedules


def schedules_declared(app: str, change: str, names: Iterable[str]) -> None:
    named = sorted(names)
    _log(logging.INFO, f"schedules {change}", {"schedules": named}, app=app, schedules=", ".join(named))


def subscriptions_declared(app: str, change: str, names: Iterable[str]) -> None:
    named = sorted(names)
    _log(logging.INFO, f"subscriptions {change}", {"tasks": named}, app=app, tasks=", ".join(named))


def subscription_refused(name: str, app: str, reason: str) -> None:
    fields: dict[str, Any] = {"task": name}
    _log(logging.WARNING, "subscription has no effect", fields, **fields, app=app, reason=reason)


def subscription_unreadable(name: str, error: Exception) -> None:
    fields: dict[str, Any] = {"task": name}
    hint = "another release wrote it: publish with that one, or restart its workers"
    _log(logging.WARNING, "subscription is unreadable", fields, **fields, error=error, hint=hint)


def schedule_taken_over(name: str, before: str, app: str) -> None:
    hint = "if both apps are in use, rename one of the schedules"
    fields: dict[str, Any] = {"schedule": name}
    _log(logging.WARNING, "schedule taken over", fields, **fields, from_app=before, by_app=app, hint=hint)


def run_quarantined(run: str, columns: str, reason: str) -> None:
    fields: dict[str, Any] = {"run": run}
    hint = "another program or a failure changed the row; see holdfast show"
    _log(
        logging.ERROR, "run quarantined: its row is corrupt", fields, **fields, columns=columns, error=reason, hint=hint
    )


def schedule_refused(name: str, app: str, reason: str) -> None:
    fields: dict[str, Any] = {"schedule": name}
    _log(logging.WARNING, "schedule declaration has no effect", fields, **fields, app=app, reason=reason)


def schedule_unreadable(name: str, trouble: str) -> None:
    fields: dict[str, Any] = {"schedule": name}
    _log(
        logging.WARNING, "schedule is unreadable for this code, left to other workers", fields, **fields, error=trouble
    )


def schedule_slots_refused(name: str, reason: str) -> None:
    fields: dict[str, Any] = {"schedule": name}
    hint = "remove it from the code here, and declare it in an app that uses the other database"
    _log(logging.WARNING, "schedule of a moved tenant creates no runs", fields, **fields, error=reason, hint=hint)


def slot_created(name: str, slot: object, made: str) -> None:
    fields: dict[str, Any] = {"schedule": name, "run": made}
    _log(logging.DEBUG, "schedule created a run", fields, **fields, slot=slot)


def slot_skipped(name: str, slot: object) -> None:
    fields: dict[str, Any] = {"schedule": name}
    _log(logging.INFO, "schedule skipped a slot", fields, **fields, slot=slot, reason="a run is unfinished")


def trigger_failed(name: str, error: BaseException | None, said: str) -> None:
    fields: dict[str, Any] = {"trigger": name}
    _log(logging.WARNING, "trigger poll failed", fields, error, **fields, error=" ".join(said.split()))


# Errors


def database_error(loop: str, error: object) -> None:
    _log(logging.WARNING, "database error, retrying", loop=loop, error=error)


def database_recovered(loop: str) -> None:
    _log(logging.INFO, "database available again", loop=loop)


def loop_failed(loop: str) -> None:
    _log(logging.ERROR, "unexpected error, continuing", exc_info=True, loop=loop)


def stop_hooks_timed_out() -> None:
    _log(logging.WARNING, "stop hooks timed out, stopping without them")


def hook_failed(hook: str) -> None:
    _log(logging.ERROR, "hook raised", exc_info=True, hook=hook)


def failure_hooks_behind(queued: int, at_once: int, dropped: int) -> None:
    level = logging.ERROR if dropped else logging.WARNING
    _log(level, "on_failure hooks are behind, claiming paused", queued=queued, concurrency=at_once, dropped=dropped)


def failure_hook_slow(hook: str, failed_run: str, seconds: float) -> None:
    fields: dict[str, Any] = {"run": failed_run}
    _log(logging.WARNING, "on_failure hook is slow", fields, hook=hook, **fields, running_for=f"{seconds:.0f}s")


def failures_not_delivered(runs: int) -> None:
    _log(logging.WARNING, "worker stopping before its on_failure hooks finished", undelivered_runs=runs)


# Supervisor


def supervisor_started(processes: int) -> None:
    _log(logging.INFO, "supervisor starting workers", processes=processes, hint="Ctrl-C or SIGTERM stops them")


def child_died(number: int, pid: int, session: str | None, how: str, pause: float) -> None:
    """Say that a worker process ended. The worker that recovers the runs of its session logs how many there were."""
    fields: dict[str, Any] = {"number": number, "pid": pid, "session": session}
    _log(
        logging.WARNING, "worker process ended", fields, worker=number, pid=pid, session=session or "(none)",
        reason=how, restart_in=f"{pause:.1f}s",
    )  # fmt: skip


def child_restarted(number: int, pid: int) -> None:
    _log(logging.INFO, "worker process restarted", {"number": number, "pid": pid}, worker=number, pid=pid)


def child_start_failed(number: int, error: object, pause: float) -> None:
    fields: dict[str, Any] = {"error": error, "retry_in": f"{pause:.1f}s"}
    _log(logging.ERROR, "worker process could not be started", {"number": number}, worker=number, **fields)


def supervisor_stopping(children: int, grace: float) -> None:
    hint = "a second signal makes the workers release their runs at once"
    _log(logging.INFO, "supervisor stopping workers", processes=children, grace=f"{grace:g}s", hint=hint)


def supervisor_stopping_now() -> None:
    _log(logging.INFO, "second signal: workers release their runs at once")


def child_killed(number: int, pid: int) -> None:
    fields: dict[str, Any] = {"number": number, "pid": pid}
    event = "worker process killed, it didn't stop in time"
    _log(logging.ERROR, event, fields, worker=number, pid=pid)


def blocking_child_killed(number: int, pid: int, file: str) -> None:
    """Log that a worker process was killed because it was frozen with the write lock of a database."""
    fields: dict[str, Any] = {"number": number, "pid": pid}
    event = "worker process killed, it stood still while it held the write lock"
    hint = 'use run_in="process" for code that holds the GIL'
    _log(logging.ERROR, event, fields, worker=number, pid=pid, file=file, hint=hint)


def supervisor_gave_up(number: int, tries: int, how: str) -> None:
    event = "supervisor gave up, a worker process keeps failing to start"
    _log(logging.ERROR, event, worker=number, attempts=tries, last=how)


def supervisor_stopped() -> None:
    _log(logging.INFO, "supervisor stopped")


# Dashboard and API


def replica_used() -> None:
    _log(logging.INFO, "read replica in use")


def replica_unused(reason: str) -> None:
    _log(logging.WARNING, "read replica not in use, reading from the primary", {"reason": reason})


def request_failed(where: str, error: BaseException) -> None:
    _log(logging.ERROR, "request failed", exc_info=error, request=where, error=type(error).__name__)


def request_unavailable(where: str, said: str) -> None:
    _log(logging.ERROR, "request failed", request=where, error=said)


def signed_in(by: str, client: str) -> None:
    _log(logging.INFO, "signed in", by=by, client=client)


def signed_out(client: str) -> None:
    _log(logging.INFO, "signed out", client=client)


def sign_in_failed(client: str, path: str) -> None:
    _log(logging.WARNING, "sign-in failed", client=client, path=path[:200])


def sign_ins_throttled(client: str) -> None:
    _log(logging.WARNING, "too many failed sign-ins, refusing more", client=client)


def link_refused(client: str, reason: str) -> None:
    """Log that a signed link can't be used. Neither the link nor what it is for is named."""
    _log(logging.INFO, "link refused", client=client, reason=reason)


def client_dropped(client: str, reason: str) -> None:
    """Not higher than debug: the client decides how often this happens."""
    _log(logging.DEBUG, "connection dropped", client=client, reason=reason)


def token_created(token: str, by: str) -> None:
    _log(logging.INFO, "token created", token=token, by=by)


def operator_action(what: str, by: str) -> None:
    _log(logging.INFO, "operator action", request=what, by=by)


# Formatting


def _log(
    level: int,
    event: str,
    extra: dict[str, Any] | None = None,
    exc_info: BaseException | bool | None = None,
    **fields: object,
) -> None:
    """Log an event with its fields. `extra` becomes attributes of the record."""
    if logger.isEnabledFor(level):
        template, values = _format(event, fields)
        logger.log(level, template, *values, exc_info=exc_info, extra=extra)


def _format(event: str, fields: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """Return a template that is the same for every line of an event, so that tools can group them, and its values."""
    return event + "".join(f" {name}=%s" for name in fields), tuple(map(_quoted, fields.values()))


def _quoted(value: object) -> str:
    """Return a value on one line, in quotes if it has a space, a quote, an equals sign or control characters."""
    text = str(value)
    if text and text.isprintable() and not any(character in text for character in ' "=\\'):
        return text
    quote = "'" if '"' in text and "'" not in text else '"'
    escaped = text.replace("\\", "\\\\").replace(quote, f"\\{quote}")
    return quote + "".join(c if c.isprintable() else repr(c)[1:-1] for c in escaped) + quote
