"""A limit as operators see it: what it allows, who has changed it, and its usage."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec


class CounterInfo(msgspec.Struct, frozen=True):
    """One counter of a limit."""

    key: Any
    """The key that it counts; None if the limit isn't keyed."""
    used: int
    """Permits in use."""
    started: int
    """Runs and steps started within the last period, or their cost."""
    parked: int
    """Waiting runs; counted up to 1,000."""
    waiting_steps: int = 0
    """Waiting steps; counted up to 1,000."""


class LimitInfo(msgspec.Struct, frozen=True):
    """A limit with its usage."""

    name: str
    concurrency: int | None
    rate: int | None
    """Starts per period, or the cost of all starts."""
    period: float | None
    """The period in seconds."""
    counters: list[CounterInfo]
    """Counters with used permits or waiting runs, busiest first."""
    weighted: bool = False
    """Whether starts have a cost."""
    set_at: datetime | None = None
    """When these values were set; None if they are those of the code."""
    set_by: str | None = None
    """Who set them."""
    declared_concurrency: int | None = None
    """The concurrency that the code declares, and to which a reset returns."""
    declared_rate: int | None = None
    """The rate that the code declares."""
    declared_period: float | None = None
    """The period of the declared rate in seconds."""
