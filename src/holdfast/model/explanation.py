"""Why a run isn't running, as plain data."""

from __future__ import annotations

from typing import Any

import msgspec


class Reason(msgspec.Struct, frozen=True):
    """One reason. `code`: ended, running, step, time, debounce, retry, event, message, children, sleep, gate, nodes,
    concurrency, limit, budget, quiescing, queued, isolated, held, paused, no_worker, no_queue, unknown_task, no_label,
    unhealthy, busy, preferred, or next."""

    code: str
    text: str
    """The reason for people, one sentence without a period."""
    data: dict[str, Any] = msgspec.field(default_factory=dict)
    """What the reason is about, by name. A wait has `since`."""
    command: str | None = None
    """A command line that removes the reason, to copy into a shell; what you must fill in is in capital letters."""

    def __str__(self) -> str:
        return self.text if self.command is None else f"{self.text}: {self.command}"
