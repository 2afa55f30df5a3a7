"""The author's functions around the work: at the start and the stop of a worker, and when a run has failed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Hook: TypeAlias = Callable[..., Any]
Between: TypeAlias = Callable[[], None]


class Hooks:
    """What `@app.on_start`, `@app.on_stop` and `@app.on_failure` registered, and what tasks get from it."""

    def __init__(self) -> None:
        self.on_start: list[Hook] = []
        self.on_stop: list[Hook] = []
        self.on_failure: list[Hook] = []
        self.between: list[Between] = []
        """Called before and after author code in each thread and process of ours, for what belongs to these: functions
        of modules, since a process imports them."""
        self.resources: dict[str, Any] = {}
