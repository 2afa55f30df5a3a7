"""Keep what user code logs with the standard `logging` module, with the run that it belongs to.

A handler of the root logger adds each record to the `RunLog` of the run whose code logged it, which a context variable
names. Nothing here waits or raises: a buffer that is full drops its oldest lines and counts them. Lines become durable
in groups, through the committer: with the end of the attempt, before the next checkpoint of the run, or within half a
second.

The body of a durable function runs again in a replay. Lines that it logs before it has got the last recorded outcome
are repetitions and are left out. Steps run again only if they aren't recorded, so all their lines are kept.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.engine.write_queue import CheckpointBatch, PendingLogs, PendingWrite, QueuedWrite, WriteQueue
from holdfast.model import secret
from holdfast.model.payloads import PayloadContext, Payloads
from holdfast.model.run_logs import Logs, StoredLine
from holdfast.store.logs import LogWrites, NewLogs
from holdfast.task.scope import current_scope
from holdfast.telemetry import log
from holdfast.telemetry.log_format import ConsoleHandler

if TYPE_CHECKING:
    from holdfast.engine.attempt import Attempt
    from holdfast.engine.threads import TimerThread

FLUSH_INTERVAL_S = 0.5
GROUPS_PER_RUN = 8
"""A full run has about this many groups: the oldest is deleted as a whole when a new one is written."""
MAX_LINE_CHARS = 8 * 1024
MIN_SECRET_CHARS = 4
"""Shorter secrets aren't masked in messages: they would also match parts of ordinary words."""
MAX_SECRETS = 100

current_run_log: ContextVar[RunLog | None] = ContextVar("holdfast_run_log", default=None)
"""Set for user code if lines are kept."""

_encode = msgspec.json.Encoder().encode
_formatter = logging.Formatter()


class RunLog:
    """The lines that the code of one run has logged and that aren't durable yet.

    A suspended function that stays in memory keeps it: it continues with the next attempt.
    """

    __slots__ = (
        "_attempt", "_bytes", "_chars", "_collector", "_dropped", "_groups", "_lines", "_lock", "_max_chars",
        "_max_lines",
        "_numbered", "_secrets", "final", "is_flushing", "level",
    )  # fmt: skip

    def __init__(self, collector: LogCollector, attempt: Attempt) -> None:
        self._collector = collector
        self.level = collector.settings.level_number
        self._max_lines = collector.settings.max_lines
        self._max_chars = collector.settings.max_bytes
        self._lines: list[StoredLine] = []
        self._chars = 0  # of the messages in `_lines`
        self._dropped = 0
        self._lock = threading.Lock()  # for everything except appending, which needs none
        self._secrets: tuple[str, ...] = ()
        self.is_flushing = False
        """Whether a write of lines is pending: a run has at most one at a time."""
        self.continue_with(attempt)

    def continue_with(self, attempt: Attempt) -> None:
        """Attribute further lines to this attempt."""
        self._attempt: Attempt | None = attempt  # None after its end: it refers to this log
        self._groups = self._numbered = self._bytes = 0  # of this claim
        self.final: Sequence[NewLogs] = ()
        """The last lines of the attempt, which are written with its end."""

    def enter(self) -> None:
        """Add the lines of the current thread or asyncio task from now on."""
        current_run_log.set(self)

    # Adding lines, from any thread

    def add(self, record: logging.LogRecord) -> None:
        """Add a record, unless the attempt has ended or a replay repeats it. Called for every line, so it calls little.

        `record.message` is set if another handler has formatted the record before.
        """
        attempt, step, name = self._attempt, None, record.name
        if attempt is None or name == "holdfast":
            return
        if attempt.plans is not None:
            scope = current_scope.get()
            step = None if scope is None else scope.step
            if step is None and attempt.plans.repeats_body:
                return
        message: str = record.__dict__.get("message") or _message(record)
        if record.exc_info is not None or record.stack_info is not None:
            message = _with_traceback(record, message)
        if self._secrets:
            message = _masked(message, self._secrets)
        if len(message) > MAX_LINE_CHARS:
            message = f"{message[:MAX_LINE_CHARS]}… (truncated; {len(message):,} characters in total)"
        lines = self._lines
        if not lines:
            self._collector.has_lines(self)
        lines.append((record.created, record.levelno, name, message, step))
        self._chars = chars = self._chars + len(message)
        if chars > self._max_chars or len(lines) > self._max_lines:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        with self._lock:
            dropped = self._lines[: len(self._lines) // GROUPS_PER_RUN + 1]
            del self._lines[: len(dropped)]
            self._chars = sum(len(line[3]) for line in self._lines)
            self._dropped += len(dropped)

    def drop(self, count: int = 1) -> None:
        """Count lines that can't be kept."""
        with self._lock:
            self._dropped += count

    def hide(self, value: Any) -> None:
        """Mask a value that the code has revealed in the lines from now on."""
        if len(self._secrets) < MAX_SECRETS:
            new = [text for text in _texts(value) if text not in self._secrets]
            # The longest first, because one may contain another.
            self._secrets = tuple(sorted((*self._secrets, *new), key=len, reverse=True))

    # Taking them

    @property
    def is_empty(self) -> bool:
        return not self._lines

    def take(self) -> list[NewLogs]:
        """Remove the lines and return them as groups to write."""
        attempt, collector = self._attempt, self._collector
        with self._lock:
            if attempt is None:
                return []
            lines, chars = self._lines[:], self._chars
            del self._lines[: len(lines)]
            self._chars = 0
            self._numbered, self._dropped = self._numbered + self._dropped, 0
            if chars <= collector.group_chars and len(lines) <= collector.group_lines:
                found = [self._group(attempt, lines)] if lines else []
            else:
                found = [self._group(attempt, part) for part in self._parts(lines)]
        return [group for group in found if group is not None]

    def _parts(self, lines: list[StoredLine]) -> Iterable[list[StoredLine]]:
        """Split lines into groups that are a small part of what is kept of a run."""
        parts: list[list[StoredLine]] = [[]]
        chars = 0
        for line in lines:
            chars += len(line[3])
            if parts[-1] and (len(parts[-1]) == self._collector.group_lines or chars > self._collector.group_chars):
                parts.append([])
                chars = len(line[3])
            parts[-1].append(line)
        return parts

    def _group(self, attempt: Attempt, lines: list[StoredLine]) -> NewLogs | None:
        claim, payloads = attempt.claim, self._collector.payloads
        self._numbered += len(lines)
        try:
            text = _encoded(lines)
            if len(text) > payloads.plain_below:
                text = payloads.pack_copy(text, PayloadContext("log", claim.tenant, claim.id))
        except Exception as error:  # the app's codec failed
            log.lines_not_stored(claim.id, attempt.task.name, claim.attempt, error)
            return None
        self._groups += 1
        self._bytes += len(text)
        return NewLogs(
            claim.id, claim.fence, self._groups, claim.attempt, len(lines), len(text), self._numbered, self._bytes, text
        )

    def flush(self) -> None:
        """Submit the lines to be written, unless earlier ones still are."""
        if not self.is_flushing and (pending := self.take_pending()) is not None:
            self.is_flushing = True
            self._collector.queue.submit_logs(pending)

    def take_pending(self) -> PendingLogs | None:
        """Remove the lines and return them as a write; None if there are none."""
        attempt, groups = self._attempt, self.take()
        if attempt is None or not groups:
            return None
        return PendingLogs(attempt, groups, sum(group.bytes for group in groups), self._on_written)

    def _on_written(self) -> None:
        self.is_flushing = False

    def close(self) -> None:
        """Keep what is left for the end of the attempt. Later lines are dropped."""
        self._collector.forget(self)
        if self._lines or self._dropped:
            self.final = self.take()
        self._attempt = None

    def discard(self, attempt: Attempt) -> None:
        """Drop what is left, because the attempt has lost its run."""
        if self._attempt is attempt:
            self._attempt = None
            self._collector.forget(self)
            self._lines.clear()


class LogCollector:
    """The logs of a worker's attempts, and the writes of their lines."""

    def __init__(self, settings: Logs, queue: WriteQueue, timer_thread: TimerThread, payloads: Payloads) -> None:
        self.settings = settings
        self.queue = queue
        self.payloads = payloads
        self.group_lines = max(settings.max_lines // GROUPS_PER_RUN, 1)
        self.group_chars = settings.max_bytes // GROUPS_PER_RUN
        self._timer_thread = timer_thread
        self._with_lines: set[RunLog] = set()
        self._is_scheduled = False
        self._is_installed = False

    def install(self) -> None:
        """Add the handler that collects lines to the root logger."""
        if not self._is_installed:
            self._is_installed = True
            _installation.add(self.settings.level_number)

    def uninstall(self) -> None:
        """Remove the handler, unless other workers of this process need it."""
        if self._is_installed:
            self._is_installed = False
            _installation.remove(self.settings.level_number)

    def open(self, attempts: Iterable[Attempt]) -> None:
        """Collect the lines of these attempts, which are about to start."""
        for attempt in attempts:
            resident = attempt.resident
            attempt.logs = RunLog(self, attempt) if resident is None else resident.current.logs

    def has_lines(self, run_log: RunLog) -> None:
        """Write the lines of a run soon. From any thread."""
        self._with_lines.add(run_log)
        if not self._is_scheduled:
            self._is_scheduled = True
            self._timer_thread.call_later(FLUSH_INTERVAL_S, self._flush)

    def forget(self, run_log: RunLog) -> None:
        self._with_lines.discard(run_log)

    def _flush(self) -> None:
        self._is_scheduled = False
        waiting = list(self._with_lines.copy())
        self._with_lines.difference_update(waiting)
        for run_log in waiting:
            run_log.flush()
            if not run_log.is_empty:  # an earlier write isn't durable yet
                self.has_lines(run_log)

    # The committer's side

    def writes(self, groups: Sequence[NewLogs]) -> LogWrites:
        return LogWrites(groups, self.settings.max_lines, self.settings.max_bytes)

    def add_lines(self, batch: list[QueuedWrite]) -> list[QueuedWrite]:
        """Return a batch of writes, preceded by the lines that their runs have logged before.

        A replay leaves out lines that precede a recorded outcome, so they must be durable before that outcome is.
        """
        found: dict[int, RunLog] = {}
        queued = {id(write.attempt.logs) for write in batch if isinstance(write, PendingLogs)}
        for write in batch:
            for each in write.writes if isinstance(write, CheckpointBatch) else (write,):
                run_log = each.attempt.logs
                if isinstance(each, PendingWrite) and run_log is not None and not run_log.is_empty:
                    found[id(run_log)] = run_log
        # Lines that couldn't be written are in the batch again: more of the same run would pile up.
        taken = [each.take_pending() for key, each in found.items() if key not in queued]
        return [*(each for each in taken if each is not None), *batch] if taken else batch

    def last_lines(self, attempts: Iterable[Attempt]) -> LogWrites | None:
        """Return the last lines of attempts that end; None if there are none."""
        groups = [group for each in attempts if each.logs is not None and each.logs.final for group in each.logs.final]
        return self.writes(groups) if groups else None


# The handler


class RunLogHandler(logging.Handler):
    """Adds records to the log of the run whose code logged them."""

    was_alone = False
    """Whether the root logger had no other handler when this one was added."""

    def handle(self, record: logging.LogRecord) -> bool:
        run_log = current_run_log.get()
        if run_log is not None and record.levelno >= run_log.level:
            try:
                run_log.add(record)
            except Exception:  # logging must never fail a run
                run_log.drop()
        if self.was_alone and len(logging.getLogger().handlers) == 1:
            _print_last_resort(record)
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Do nothing: `handle` does all, without the lock of other handlers."""


class _Installation:
    """The handler, in processes with at least one worker that keeps lines.

    Where the application hasn't configured logging, the level of the root logger decides what is logged, so it is
    lowered while a worker keeps lines. What is printed stays the same.
    """

    def __init__(self) -> None:
        self._handler = RunLogHandler()
        self._levels: list[int] = []
        self._lock = threading.Lock()
        self._root_level: int | None = None
        self._console_filter = _OnlyFromWarning()

    def add(self, level: int) -> None:
        with self._lock:
            self._levels.append(level)
            self._update()

    def remove(self, level: int) -> None:
        with self._lock:
            self._levels.remove(level)
            self._update()

    def _update(self) -> None:
        root = logging.getLogger()
        if not self._levels:
            root.removeHandler(self._handler)
            secret.on_reveal(None)
            if self._root_level is not None:
                root.setLevel(self._root_level)
                self._root_level = None
            for handler in root.handlers:
                handler.removeFilter(self._console_filter)
            return
        self._handler.setLevel(min(self._levels))
        secret.on_reveal(_hide)
        others = [handler for handler in root.handlers if handler is not self._handler]
        if all(isinstance(handler, ConsoleHandler) for handler in others) and root.level > min(self._levels):
            self._root_level = root.level if self._root_level is None else self._root_level
            root.setLevel(min(self._levels))
            for handler in others:
                handler.addFilter(self._console_filter)
        if self._handler not in root.handlers:
            self._handler.was_alone = not others
            root.addHandler(self._handler)


class _OnlyFromWarning(logging.Filter):
    """Lets pass what `holdfast worker` prints: lines of Holdfast, and of others from WARNING on."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.WARNING or record.name == "holdfast"


_installation = _Installation()


def _print_last_resort(record: logging.LogRecord) -> None:
    """Print a record as `logging` does without a handler, because the handler of this module must not change that."""
    last = logging.lastResort
    if last is None or record.levelno < last.level:
        return
    logger: logging.Logger | None = logging.getLogger(record.name)
    while logger is not None:
        if any(not isinstance(handler, RunLogHandler) for handler in logger.handlers):
            return
        logger = logger.parent if logger.propagate else None
    last.handle(record)


def _hide(value: Any) -> None:
    run_log = current_run_log.get()
    if run_log is not None:
        run_log.hide(value)


# Messages


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # the arguments don't fit the format
        return f"{record.msg} (its arguments can't be formatted)"


def _with_traceback(record: logging.LogRecord, message: str) -> str:
    if record.exc_info:
        message = f"{message}\n{_formatter.formatException(record.exc_info)}"
    return f"{message}\n{record.stack_info}" if record.stack_info else message


def _masked(message: str, secrets: Iterable[str]) -> str:
    for text in secrets:
        if text in message:
            message = message.replace(text, secret.MASK)
    return message


def _texts(value: Any) -> Iterable[str]:
    """Yield the texts of a revealed value that are long enough to be masked."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _texts(item)
    elif value is not None and not isinstance(value, bool):
        text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
        if len(text) >= MIN_SECRET_CHARS:
            yield text


def _encoded(lines: list[StoredLine]) -> str:
    try:
        return _encode(lines).decode()
    except UnicodeEncodeError:  # a lone surrogate
        return _encode([tuple(_clean(part) for part in line) for line in lines]).decode()


def _clean(part: Any) -> Any:
    return part.encode("utf-8", "backslashreplace").decode() if isinstance(part, str) else part
