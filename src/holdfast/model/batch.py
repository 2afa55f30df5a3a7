"""`Batch`: how runs of a task are collected into one call."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.clock import Duration, to_micros

MAX_BATCH_RUNS = 1000


class Batch(msgspec.Struct, frozen=True):
    """Collect runs of a task into one call of its function, which gets a list with the argument of each run.

    Args:
        max_size: How many runs one call gets at most, up to 1,000.
        max_wait: How long a worker waits for more runs after it has claimed the first.
        by: `"tenant"` if the runs of a call must have the same tenant.

    Example:
        ```python
        @app.task(batch=Batch(max_size=100, max_wait=2))
        def index(docs: list[str]) -> None: ...


        index.enqueue("one document")
        ```
    """

    max_size: int = 100
    max_wait: Duration = 1
    by: Literal["tenant"] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.max_size, bool) or not isinstance(self.max_size, int):
            raise ConfigError(f"Batch: max_size must be an int, not {type(self.max_size).__name__}")
        if not 1 <= self.max_size <= MAX_BATCH_RUNS:
            raise ConfigError(f"Batch: max_size must be from 1 to {MAX_BATCH_RUNS:,}, not {self.max_size}")
        if self.by not in (None, "tenant"):
            raise ConfigError(f'Batch: by must be "tenant" or None, not {self.by!r}')
        to_micros(self.max_wait, "Batch: max_wait")

    @property
    def max_wait_micros(self) -> int:
        return to_micros(self.max_wait, "Batch: max_wait")


def check_batch(value: Any, what: str) -> Batch:
    if not isinstance(value, Batch):
        raise ConfigError(f"{what} must be a Batch, not {type(value).__name__}")
    return value
