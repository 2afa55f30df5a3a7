"""Every line that Holdfast logs. Quiet unless the application, or `holdfast worker`, asks for it."""

from __future__ import annotations

import logging
from collections.abc import Iterable

logger = logging.getLogger("holdfast")
logger.addHandler(logging.NullHandler())


def worker_started(session: str, database: str, tasks: int, concurrency: int) -> None:
    logger.info("worker %s works on %s: %d tasks, %d at once", session, database, tasks, concurrency)


def worker_stopping(session: str, running: int, grace: float) -> None:
    logger.info("worker %s stops: %d runs have %g s to finish", session, running, grace)


def worker_stopped(session: str, finished: int, handed_back: int) -> None:
    logger.info("worker %s stopped: %d attempts ended here, %d runs handed back", session, finished, handed_back)


def attempt_failed(run: str, task: str, attempt: int, error: object, retry_in: float | None) -> None:
    if retry_in is None:
        logger.error("run %s (%s) failed at attempt %d: %s", run, task, attempt, error)
    else:
        logger.warning("run %s (%s) attempt %d failed, next in %.1f s: %s", run, task, attempt, retry_in, error)


def attempt_done(run: str, task: str, attempt: int) -> None:
    logger.debug("run %s (%s) done at attempt %d", run, task, attempt)


def attempt_refused(run: str, task: str, attempt: int) -> None:
    logger.warning(
        "run %s (%s) attempt %d: the run isn't ours any more (cancelled, or taken over); its result is dropped",
        run,
        task,
        attempt,
    )


def attempt_unstoppable(run: str, task: str, attempt: int) -> None:
    logger.warning(
        "run %s (%s) attempt %d went past its time and can't be stopped; it keeps its slot until it ends",
        run,
        task,
        attempt,
    )


def end_not_written(run: str, error: object) -> None:
    logger.error("run %s: the database refuses the end of its attempt (%s); the run fails", run, error)


def session_lost(session: str, why: str, running: Iterable[str]) -> None:
    logger.warning("session %s is over (%s); stopped: %s", session, why, ", ".join(running) or "nothing")


def late_heartbeat(seconds: float, running: Iterable[str]) -> None:
    logger.warning(
        "the heartbeat was held up for %.1f s: one of %s keeps the interpreter to itself;"
        ' give it run_in="process", or let it release the GIL',
        seconds,
        ", ".join(running) or "the threads of this process",
    )


def handed_back_unknown(runs: int) -> None:
    logger.warning("%d runs were ours by the database's account but never reached us; handed back", runs)


def recovered(sessions: Iterable[str], ready: int, failed: int) -> None:
    logger.warning(
        "dead: %s; %d of their runs are ready again, %d crashed too often", ", ".join(sessions), ready, failed
    )


def overdue(runs: int) -> None:
    logger.warning("%d runs failed: past their deadline", runs)


def pruned(runs: int) -> None:
    logger.info("%d finished runs pruned", runs)


def database_trouble(loop: str, error: object) -> None:
    logger.warning("%s: %s; trying again", loop, error)


def database_back(loop: str) -> None:
    logger.info("%s: the database is back", loop)


def loop_failed(loop: str) -> None:
    logger.exception("%s: unexpected error; going on", loop)


def hook_failed(hook: str) -> None:
    logger.exception("%s raised", hook)
