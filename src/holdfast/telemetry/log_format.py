"""Which run a log line is about: known to every line that is written inside one, the author's too.

`RunFields` is a filter for handlers: it gives each record `run`, `task`, `attempt` and `worker`, and `trace_id` and
`span_id` inside a span of OpenTelemetry. `JsonLines` is a formatter that writes records with all their fields as JSON.
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


class CurrentAttempt(msgspec.Struct, frozen=True):
    """The attempt that code is part of."""

    run: str
    task: str
    attempt: int
    worker: str


current_attempt: ContextVar[CurrentAttempt | None] = ContextVar("holdfast_working", default=None)
"""Set for author code. It follows it into coroutines, tasks, and the threads that we start for it."""

current_worker: ContextVar[Callable[[], str | None] | None] = ContextVar("holdfast_worker", default=None)
"""Set for the threads of a worker's own loops: which session it works under just now."""

_ALWAYS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class RunFields(logging.Filter):
    """Gives records the fields of the run that they were written in. A field that a record has already stays."""

    def filter(self, record: logging.LogRecord) -> bool:
        fields = vars(record)
        now = current_attempt.get()
        if now is not None:
            for name in now.__struct_fields__:
                fields.setdefault(name, getattr(now, name))
        elif (session := current_worker.get()) is not None and (named := session()) is not None:
            fields.setdefault("worker", named)
        _add_span(fields)
        return True


def _add_span(fields: dict[str, Any]) -> None:
    """The span of OpenTelemetry that is current, where anybody has imported it."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is not None:
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            fields.setdefault("trace_id", f"{span.trace_id:032x}")
            fields.setdefault("span_id", f"{span.span_id:016x}")


class JsonLines(logging.Formatter):
    """A line of JSON per record: `time`, `level`, `logger`, `message`, `exception` if there is one, then its fields."""

    def format(self, record: logging.LogRecord) -> str:
        import json  # late: only those who write such lines need it

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
        more = {name: value for name, value in vars(record).items() if name not in _ALWAYS and name not in line}
        return json.dumps({**line, **more}, default=str, skipkeys=True)


DIM = "\x1b[2m"
PLAIN = "\x1b[0m"
COLOURS = {logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m", logging.CRITICAL: "\x1b[31m"}


LogFormat: TypeAlias = Literal["text", "json"]


class ConsoleHandler(logging.StreamHandler[TextIO]):
    """What is shown on standard error, and how `show_log` was asked to."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        self.settings = settings
        self.addFilter(RunFields())


def configure_console_log(verbose: bool, prefix: str = "", style: LogFormat = "text") -> None:
    """Show what Holdfast logs, every run with `verbose`, and warnings of everyone else, on standard error. As JSON each
    line has the fields of the run that it was written in."""
    handler = ConsoleHandler({"verbose": verbose, "prefix": prefix, "style": style})
    handler.setFormatter(JsonLines() if style == "json" else ConsoleFormatter(use_color(sys.stderr), prefix))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("holdfast").setLevel(logging.DEBUG if verbose else logging.INFO)


def console_log_settings() -> dict[str, Any] | None:
    """How the log of this process is shown, as `show_log` takes it; None where that is the application's business."""
    handlers = logging.getLogger().handlers
    return next((handler.settings for handler in handlers if isinstance(handler, ConsoleHandler)), None)


def use_color(stream: TextIO) -> bool:
    """Whether to colour: on a terminal, unless $NO_COLOR; also where $FORCE_COLOR says that a terminal comes after."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


class ConsoleFormatter(logging.Formatter):
    """Time, level and message. What an exception's text brings along stays inside its line: further lines are
    indented, control characters are spelled out."""

    def __init__(self, colours: bool, prefix: str = "") -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
        self._colours = colours
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        first, *more = super().format(record).split("\n")
        text = f"\n{self._prefix}    ".join(map(_printable, [first, *more]))
        if not self._colours:
            return self._prefix + text
        time, rest = text[:8], text[8:]
        colour = COLOURS.get(record.levelno, "")
        return f"{self._prefix}{DIM}{time}{PLAIN}{colour}{rest}{PLAIN if colour else ''}"


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in line)
