"""Which run a log line is about: known to every line that is written inside one, the author's too.

`RunFields` is a filter for handlers: it gives each record `run`, `task`, `attempt` and `worker`, and `trace_id` and
`span_id` inside a span of OpenTelemetry. `JsonLines` is a formatter that writes records with all their fields as JSON.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import msgspec


class Working(msgspec.Struct, frozen=True):
    """The attempt that code is part of."""

    run: str
    task: str
    attempt: int
    worker: str


working: ContextVar[Working | None] = ContextVar("holdfast_working", default=None)
"""Set for author code. It follows it into coroutines, tasks, and the threads that we start for it."""

worker_here: ContextVar[Callable[[], str | None] | None] = ContextVar("holdfast_worker", default=None)
"""Set for the threads of a worker's own loops: which session it works under just now."""

_ALWAYS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class RunFields(logging.Filter):
    """Gives records the fields of the run that they were written in. A field that a record has already stays."""

    def filter(self, record: logging.LogRecord) -> bool:
        fields = vars(record)
        now = working.get()
        if now is not None:
            for name in now.__struct_fields__:
                fields.setdefault(name, getattr(now, name))
        elif (session := worker_here.get()) is not None and (named := session()) is not None:
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
