"""Budgets: exact amounts, and a budget as operators see it."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Literal, TypeAlias

import msgspec

from holdfast.errors import BadArguments

Per: TypeAlias = Literal["run", "tree", "tenant"]
OnExceeded: TypeAlias = Literal["wait", "fail"]
Amount: TypeAlias = Decimal | float

DIGITS = 9
UNITS_PER_ONE = 10**DIGITS
"""Amounts are stored as integers, in billionths."""
MAX_AMOUNT = 999_999_999
MAX_STORED_UNITS = 9 * 10**18
"""Totals stop there: a column holds little more."""


def to_units(amount: object, what: str, error: type[Exception] = BadArguments) -> int:
    """Return an amount in billionths, rounded to the nearest; raise `error` if it isn't one.

    A float counts as the decimal number that Python prints for it: 0.1 is exactly a tenth.
    """
    valid = isinstance(amount, int | float | Decimal) and not isinstance(amount, bool)
    number = Decimal(repr(amount) if isinstance(amount, float) else amount) if valid else None  # type: ignore[arg-type]
    if number is None or not number.is_finite() or not 0 <= number <= MAX_AMOUNT:
        shown = str(amount if number is None else number)[:60]
        raise error(f"{what} must be a number from 0 to {MAX_AMOUNT:,}, not {shown!r}")
    return int(round(number, DIGITS).scaleb(DIGITS))


def from_units(units: int) -> Decimal:
    """Return a stored amount as a number without needless zeros: 5, 0.013."""
    number = Decimal(units).scaleb(-DIGITS)
    return number.quantize(Decimal(1)) if number == number.to_integral_value() else number.normalize()


def format_amount(amount: Decimal) -> str:
    """Format an amount for people: 1,234.5."""
    return f"{amount:,f}"


class BudgetStatus(msgspec.Struct, frozen=True):
    """What `ctx.budget` returns: how much may be spent, was spent, and is left."""

    limit: Decimal
    spent: Decimal

    @property
    def left(self) -> Decimal:
        """What may still be spent; 0 if the limit is exceeded."""
        return max(self.limit - self.spent, Decimal(0))


class BudgetTotal(msgspec.Struct, frozen=True):
    """What a run, a tree or a tenant has spent of a budget."""

    key: str
    """The id of the run, that of the root of the tree, or the tenant; empty for runs without a tenant."""
    spent: Decimal
    """Within the current window."""
    limit: Decimal
    waiting: int
    """Runs that wait for it; counted up to 1,000."""
    set_at: datetime | None = None
    """When a limit of its own was set; None if the one of the budget applies."""
    set_by: str | None = None


class BudgetInfo(msgspec.Struct, frozen=True):
    """A budget with what was spent of it."""

    name: str
    limit: Decimal
    per: Literal["run", "tree", "tenant"]
    window: float | None
    """The window in seconds; None if the budget isn't renewed."""
    on_exceeded: Literal["wait", "fail"]
    totals: list[BudgetTotal]
    """Totals that runs wait for, then the highest ones."""
    set_at: datetime | None = None
    """When this limit was set; None if it is that of the code."""
    set_by: str | None = None
    declared_limit: Decimal | None = None
    """The limit that the code declares, and to which a reset returns."""
    waiting: int = 0
    """Runs that wait for it; counted up to 1,000."""
