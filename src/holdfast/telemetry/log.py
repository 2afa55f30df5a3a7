"""Every line that Holdfast logs. Quiet unless the application, or `holdfast worker`, asks for it.

One line per thing that matters. What is about a run begins with `run ID (TASK) attempt N` and carries `run`, `task` and
`attempt` as fields of the record, for handlers that write JSON; `session` and the like stand on lines about workers.
Which worker a line comes from, and which run author code writes a line of its own in, is in `fields.py`.
Levels: DEBUG each run that ended well, INFO the life of workers, WARNING what is tried again or taken over, ERROR what
failed for good. Never logged: arguments, results, passwords.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from holdfast.errors import ErrorInfo

logger = logging.getLogger("holdfast")
logger.addHandler(logging.NullHandler())


# Attempts


def attempt_done(run: str, task: str, attempt: int) -> None:
    _tell(logging.DEBUG, run, task, attempt, "done")


def attempt_handed_back(run: str, task: str, attempt: int) -> None:
    _tell(logging.DEBUG, run, task, attempt, "handed back: this worker stops")


def attempt_failed(run: str, task: str, attempt: int, error: ErrorInfo, retry_in: float | None) -> None:
    if error.code == "bad_arguments":  # its message may show what is in them
        _tell(logging.ERROR, run, task, attempt, "failed for good: its kept arguments don't fit the code")
    elif retry_in is None:
        _tell(logging.ERROR, run, task, attempt, "failed for good: %s", error)
    else:
        _tell(logging.WARNING, run, task, attempt, "failed, next try in %.1f s: %s", retry_in, error)


def attempt_crashed(run: str, task: str, attempt: int, error: object, *, final: bool) -> None:
    if final:
        _tell(logging.ERROR, run, task, attempt, "failed for good, it crashed too often: %s", error)
    else:
        _tell(logging.WARNING, run, task, attempt, "crashed, ready again: %s", error)


def options_unreadable(run: str, task: str, attempt: int, error: object) -> None:
    _tell(logging.WARNING, run, task, attempt, "has options that can't be read, the task's own hold: %s", error)


def no_thread(run: str, task: str, attempt: int, error: object) -> None:
    _tell(logging.ERROR, run, task, attempt, "handed back, no thread could be started for it: %s", error)


def attempt_refused(run: str, task: str, attempt: int) -> None:
    what = "isn't ours any more (cancelled, or taken over): its result is dropped"
    _tell(logging.WARNING, run, task, attempt, what)


def attempt_paused(run: str, task: str, attempt: int, kind: str) -> None:
    what = "waits" if kind == "waiting" else "begins anew with other arguments"
    _tell(logging.DEBUG, run, task, attempt, what)


def attempt_waits_for_database(run: str, task: str, attempt: int, error: object) -> None:
    _tell(logging.WARNING, run, task, attempt, "waits for the database: %s", error)


def attempt_undoes(run: str, task: str, attempt: int, error: ErrorInfo) -> None:
    _tell(logging.ERROR, run, task, attempt, "failed for good, and undoes what it did: %s", error)


def attempt_undone(run: str, task: str, attempt: int) -> None:
    _tell(logging.WARNING, run, task, attempt, "has undone what the run did")


def drifted(run: str, task: str, attempt: int, steps: str) -> None:
    what = "asked for steps with other arguments than are on record, so they ran again: %s; is it time or chance?"
    _tell(logging.WARNING, run, task, attempt, what, steps)


def attempt_abandoned(run: str, task: str, attempt: int, lost_threads: int) -> None:
    what = "abandoned: its code didn't stop; its result will be discarded (lost threads: %d)"
    _tell(logging.WARNING, run, task, attempt, what, lost_threads)


def attempt_still_running(run: str, task: str, attempt: int) -> None:
    _tell(logging.WARNING, run, task, attempt, "is still running, and can't be stopped; its result will be discarded")


def end_not_written(run: str, task: str, attempt: int, error: ErrorInfo) -> None:
    _tell(logging.ERROR, run, task, attempt, "ended, but what it came to can't be written: %s", error)


def run_overdue(run: str, task: str, attempt: int) -> None:
    _tell(logging.ERROR, run, task, attempt, "failed for good: it is past its deadline")


def _tell(level: int, run: str, task: str, attempt: int, what: str, *values: object) -> None:
    """A line about an attempt. Looked at first: a busy worker ends thousands a second."""
    if logger.isEnabledFor(level):
        fields = {"run": run, "task": task, "attempt": attempt}
        logger.log(level, f"run %s (%s) attempt %d {what}", run, task, attempt, *values, extra=fields)  # noqa: G004


# Workers


def worker_started(session: str, database: str, tasks: int, concurrency: int) -> None:
    fields = {"session": session}
    logger.info("worker %s works on %s: %d tasks, %d at once", session, database, tasks, concurrency, extra=fields)


def start_waits_for_database(error: object, tries: int, pause: float) -> None:
    times = "once" if tries == 1 else f"{tries} times"
    logger.warning("worker waits for its database: %s; tried %s, next try in %.1f s", error, times, pause)


def start_goes_on(tries: int) -> None:
    logger.info("the database is available, after %d failed tries", tries)


def start_aborted() -> None:
    logger.info("worker stopped before it had started")


def worker_stopping(session: str, running: int, grace: float) -> None:
    fields = {"session": session}
    if running:
        logger.info(
            "worker %s stops: %s %g s to finish; a second signal hurries it",
            session, _have(running), grace, extra=fields,
        )  # fmt: skip
    else:
        logger.info("worker %s stops: it has nothing in hand", session, extra=fields)


def worker_stopped(session: str, finished: int, handed_back: int) -> None:
    fields = {"session": session}
    logger.info("worker %s stopped: %d ended here, %d handed back", session, finished, handed_back, extra=fields)


def session_lost(session: str, why: str, running: Iterable[str]) -> None:
    stopped = ", ".join(running) or "nothing"
    logger.warning("session %s is over: %s; stopped: %s", session, why, stopped, extra={"session": session})


def late_heartbeat(seconds: float, running: Iterable[str]) -> None:
    logger.warning(
        'heartbeat delayed %.1f s: a task is holding the GIL (running: %s); use run_in="process" for CPU-bound work',
        seconds,
        ", ".join(running) or "none",
    )


def loop_stalled(seconds: float, blocker: str, released: int) -> None:
    logger.warning(
        "event loop stalled for %.1f s by %s: claiming stopped, %d unstarted runs handed back",
        seconds, blocker, released,
    )  # fmt: skip


def loop_given_up(seconds: float, blocker: str, stack: str, runs: int) -> None:
    """Log with `stack`, the stack of the blocking call, which handlers print below the line like `stack_info`."""
    if not logger.isEnabledFor(logging.ERROR):
        return
    what = (
        "event loop blocked for %.1f s by %s: ending the attempts of %d runs on it; use async I/O, or a `def` task,"
        " which runs in a thread; the blocking call is below"
    )
    args = (seconds, blocker, runs)
    record = logger.makeRecord(logger.name, logging.ERROR, __file__, 0, what, args, None, sinfo=stack)
    logger.handle(record)


def threads_lost(lost: int, concurrency: int) -> None:
    logger.error(
        "%d of %d threads are lost to code that ignored its timeout or cancellation; give blocking calls a timeout of"
        " their own",
        lost, concurrency,
    )  # fmt: skip


def worker_restarts(reason: str) -> None:
    logger.error("worker stopping for a restart: %s", reason)


def isolated_started(runs: int, others: int) -> None:
    beside = "no other runs" if not others else f"{others} other runs that didn't end in time"
    logger.warning("starting %d isolated runs beside %s, to find the run that kills its worker", runs, beside)


def handed_back_unknown(runs: int) -> None:
    logger.warning("%s ours by the database's account but never reached us: handed back", _were(runs))


def recovered(sessions: Iterable[str], ready: int, failed: int) -> None:
    dead = sorted(sessions)
    logger.warning(
        "worker lost session=%s requeued=%d failed=%d",
        ",".join(dead),
        ready,
        failed,
        extra={"sessions": dead},
    )


def pruned(runs: int) -> None:
    logger.info("%d finished runs pruned", runs)


# Payloads


def payload_large(what: str, size: int) -> None:
    told = "%s: %s bytes of JSON, which is stored, read and sent again and again; is a reference to it enough?"
    logger.warning(told, _inert(what), f"{size:,}")


# Schedules


def schedules_declared(app: str, what: str, names: Iterable[str]) -> None:
    named = sorted(names)
    logger.info("schedules of %s, %s: %s", app, what, ", ".join(named), extra={"schedules": named})


def schedule_taken(name: str, before: str, app: str) -> None:
    logger.warning(
        "schedule %s was declared by the app %s before and is %s's now; if both are in use, give one another name",
        name, before, app, extra={"schedule": name},
    )  # fmt: skip


def schedule_unreadable(name: str, trouble: str) -> None:
    what = "schedule %s can't be read by this code, and is left to other workers: %s"
    logger.warning(what, name, trouble, extra={"schedule": name})


def slot_made(name: str, slot: object, made: str) -> None:
    logger.debug("schedule %s made run %s of its slot %s", name, made, slot, extra={"schedule": name, "run": made})


def slot_passed(name: str, slot: object) -> None:
    logger.info("schedule %s: a run is unfinished, so its slot %s makes none", name, slot, extra={"schedule": name})


def trigger_failed(name: str, error: BaseException | None, said: str) -> None:
    line = " ".join(said.split())
    logger.warning("trigger %s: %s; polled again in time", name, line, exc_info=error, extra={"trigger": name})


# Trouble


def database_trouble(loop: str, error: object) -> None:
    logger.warning("%s: %s; trying again", loop, error)


def database_back(loop: str) -> None:
    logger.info("%s: goes on, the database is back", loop)


def loop_failed(loop: str) -> None:
    logger.exception("%s: unexpected error; going on", loop)


def hooks_slow() -> None:
    logger.warning("the stop hooks are not done in time; the worker stops without waiting for them")


def hook_failed(hook: str) -> None:
    logger.exception("%s raised", hook)


def failure_hooks_behind(queued: int, at_once: int, dropped: int) -> None:
    lost = f"; {dropped} failed runs will not be delivered to them" if dropped else ""
    logger.log(
        logging.ERROR if dropped else logging.WARNING,
        "on_failure hooks are behind: %d failed runs queued, %d hooks at once; claiming pauses until they catch up%s",
        queued, at_once, lost,
    )  # fmt: skip


def failure_hook_slow(hook: str, failed_run: str, seconds: float) -> None:
    fields = {"run": failed_run}
    logger.warning("on_failure %s for run %s has been running for %.0f s", hook, failed_run, seconds, extra=fields)


def failures_not_delivered(runs: int) -> None:
    logger.warning("worker stopping: on_failure hooks were not called, or not finished, for %d failed runs", runs)


# The supervisor of several worker processes


def supervisor_started(processes: int) -> None:
    logger.info("%d worker processes are starting; Ctrl-C or SIGTERM stops them", processes)


def child_died(number: int, pid: int, how: str, pause: float) -> None:
    fields = {"number": number, "pid": pid}
    logger.warning("worker %d (pid %d) %s; a new one starts in %.1f s", number, pid, how, pause, extra=fields)


def child_restarted(number: int, pid: int) -> None:
    logger.info("worker %d starts again (pid %d)", number, pid, extra={"number": number, "pid": pid})


def child_not_startable(number: int, error: object, pause: float) -> None:
    logger.error("worker %d can't be started: %s; again in %.1f s", number, error, pause, extra={"number": number})


def supervisor_stopping(children: int, grace: float) -> None:
    logger.info("stopping: %d worker processes have %g s to finish; once more to hurry", children, grace)


def supervisor_hurries() -> None:
    logger.info("told again: the worker processes hand back what they have in hand")


def child_killed(number: int, pid: int) -> None:
    fields = {"number": number, "pid": pid}
    logger.error("worker %d (pid %d) didn't stop in time and is killed", number, pid, extra=fields)


def supervisor_gave_up(number: int, tries: int, how: str) -> None:
    logger.error("giving up: worker %d failed to start %d times in a row, the last time it %s", number, tries, how)


def supervisor_stopped() -> None:
    logger.info("stopped: no worker process is left")


# The web side


def request_failed(where: str, error: BaseException) -> None:
    logger.error("%s couldn't be answered: %s", _inert(where), type(error).__name__, exc_info=error)


def request_unanswered(where: str, said: str) -> None:
    logger.error("%s couldn't be answered: %s", _inert(where), _inert(said))


def acted(what: str, by: str) -> None:
    logger.info("%s, by %s", _inert(what), by)


# Words


def _inert(text: str) -> str:
    """What somebody sent, in one line, whatever is in it."""
    return ascii(text)[1:-1]


def _have(runs: int) -> str:
    return "1 run has" if runs == 1 else f"{runs} runs have"


def _were(runs: int) -> str:
    return "1 run was" if runs == 1 else f"{runs} runs were"
