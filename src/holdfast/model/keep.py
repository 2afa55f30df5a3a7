"""`Keep`: how long finished runs are kept; and the retention of the audit log."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple

from holdfast.model.clock import MICROS_PER_SECOND, Duration, to_micros

DEFAULT_KEEP_AUDIT = timedelta(days=365)
"""How long entries of the audit log are kept."""


class Keep:
    """How long finished runs are kept. Immutable.

    Args:
        done: How long runs are kept that succeeded.
        failed: How long runs are kept that failed or were cancelled.

    Example:
        ```python
        app = Holdfast(keep=Keep(done=timedelta(days=1), failed=timedelta(days=90)))
        ```
    """

    __slots__ = ("done_micros", "failed_micros", "stored_failed_micros")

    done_micros: int
    failed_micros: int
    stored_failed_micros: int | None
    """What is stored with a run for failures: None if they are kept as long as successes."""

    def __init__(self, *, done: Duration = timedelta(days=7), failed: Duration = timedelta(days=30)) -> None:
        object.__setattr__(self, "done_micros", to_micros(done, "Keep: done"))
        object.__setattr__(self, "failed_micros", to_micros(failed, "Keep: failed"))
        differs = self.failed_micros != self.done_micros
        object.__setattr__(self, "stored_failed_micros", self.failed_micros if differs else None)

    @classmethod
    def of(cls, keep: Keep | Duration, what: str) -> Keep:
        """Return a setting as a `Keep`: a duration applies to all runs. `what` names the setting in errors."""
        if isinstance(keep, Keep):
            return keep
        same = timedelta(microseconds=to_micros(keep, what))
        return cls(done=same, failed=same)

    @property
    def longest_micros(self) -> int:
        return max(self.done_micros, self.failed_micros)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Keep is immutable; create a new one instead of setting {name}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Keep):
            return NotImplemented
        return (self.done_micros, self.failed_micros) == (other.done_micros, other.failed_micros)

    def __hash__(self) -> int:
        return hash((self.done_micros, self.failed_micros))

    def __repr__(self) -> str:
        done, failed = self.done_micros / MICROS_PER_SECOND, self.failed_micros / MICROS_PER_SECOND
        return f"Keep(done={done:g}, failed={failed:g})"


class KeepRules(NamedTuple):
    """How long the runs of an app are kept: those of some tenants differently."""

    default: Keep
    by_tenant: Mapping[str, Keep] = {}

    def of_run(self, tenant: str | None, task: Keep | None = None) -> Keep:
        """Return the rule for a run of a tenant, whose task may have its own."""
        if tenant is not None and tenant in self.by_tenant:
            return self.by_tenant[tenant]
        return task or self.default
