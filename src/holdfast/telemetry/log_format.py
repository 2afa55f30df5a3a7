"""Log records: which run a line belongs to, and how lines look as JSON and in a terminal.

`RunFields` is a filter for handlers. It adds `run`, `task`, `attempt` and `worker` to every record that is logged
inside a run, also by user code, and `trace_id` and `span_id` inside an OpenTelemetry span. `JsonLines` formats records
with all their fields as JSON. `holdfast worker` uses `configure_console_log`; applications configure logging as they
like.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, TextIO, TypeAlias

import msgspec

LogFormat: TypeAlias = Literal["text", "json"]

DIM = "\x1b[2m"
PLAIN = "\x1b[0m"
COLORS = {logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m", logging.CRITICAL: "\x1b[31m"}

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class CurrentAttempt(msgspec.Struct, frozen=True, gc=False):
    """The attempt that the running code belongs to."""

    run: str
    task: str
    attempt: int
    worker: str


current_attempt: ContextVar[CurrentAttempt | None] = ContextVar("holdfast_attempt", default=None)
"""Set for user code. Coroutines, asyncio tasks and the threads that Holdfast starts for it inherit it."""

current_worker: ContextVar[Callable[[], str | None] | None] = ContextVar("holdfast_worker", default=None)
"""Set in the threads of a worker's loops: returns the current session."""


class RunFields(logging.Filter):
    """Adds the fields of the current run to records. Fields that a record already has are kept."""

    def filter(self, record: logging.LogRecord) -> bool:
        fields = vars(record)
        attempt = current_attempt.get()
        if attempt is not None:
            for name in attempt.__struct_fields__:
                fields.setdefault(name, getattr(attempt, name))
        elif (session := current_worker.get()) is not None and (id := session()) is not None:
            fields.setdefault("worker", id)
        _add_span(fields)
        return True


def _add_span(fields: dict[str, Any]) -> None:
    """Add the ids of the current OpenTelemetry span, if the library has been imported."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is not None:
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            fields.setdefault("trace_id", f"{span.trace_id:032x}")
            fields.setdefault("span_id", f"{span.span_id:016x}")


class JsonLines(logging.Formatter):
    """One JSON object per record: `time`, `level`, `logger`, `message`, `exception` if any, then its other fields."""

    def format(self, record: logging.LogRecord) -> str:
        import json  # imported here because only this formatter needs it

        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = record.stack_info
        more = {
            name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS and name not in line
        }
        return json.dumps({**line, **more}, default=str, skipkeys=True)


class ConsoleFormatter(logging.Formatter):
    """Time, level and message. Further lines are indented, and control characters are escaped."""

    def __init__(self, colors: bool, prefix: str = "") -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
        self._colors = colors
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        text = f"\n{self._prefix}    ".join(map(_printable, super().format(record).split("\n")))
        if not self._colors:
            return self._prefix + text
        time, rest = text[:8], text[8:]
        color = COLORS.get(record.levelno, "")
        return f"{self._prefix}{DIM}{time}{PLAIN}{color}{rest}{PLAIN if color else ''}"


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in line)


class ConsoleHandler(logging.StreamHandler[TextIO]):
    """Writes to standard error, and remembers the arguments of `configure_console_log`."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        self.settings = settings
        self.addFilter(RunFields())


def configure_console_log(verbose: bool, prefix: str = "", style: LogFormat = "text") -> None:
    """Log to standard error: Holdfast at INFO (DEBUG if `verbose`), everything else at WARNING."""
    handler = ConsoleHandler({"verbose": verbose, "prefix": prefix, "style": style})
    handler.setFormatter(JsonLines() if style == "json" else ConsoleFormatter(use_color(sys.stderr), prefix))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("holdfast").setLevel(logging.DEBUG if verbose else logging.INFO)


def console_log_settings() -> dict[str, Any] | None:
    """Return the arguments of `configure_console_log` in this process; None if the application configured logging."""
    handlers = logging.getLogger().handlers
    return next((handler.settings for handler in handlers if isinstance(handler, ConsoleHandler)), None)


def use_color(stream: TextIO) -> bool:
    """Return whether to color: if $FORCE_COLOR is set, or on a terminal that isn't dumb; never if $NO_COLOR is set."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (os.environ.get("TERM") != "dumb" and stream.isatty())
