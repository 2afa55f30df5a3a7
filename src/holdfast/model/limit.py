"""A limit as operators see it: what it allows, who has changed it, and its usage."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec


class PermitHolder(msgspec.Struct, frozen=True):
    """A run, or a step of it, that holds a permit."""

    run: UUID
    task: str
    tenant: str | None
    key: Any
    """The key of the counter; None if the limit isn't keyed."""
    step: str | None
    """The step; None if the run itself holds the permit."""
    worker: str
    """The session that executes it."""
    since: datetime | None
    """When it took the permit."""
    cost: int = 1


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
    holders: list[PermitHolder] | None = None
    """Up to 100 runs and steps that hold permits, those that took them first at the top; None in lists of limits."""
