"""Budgets as users declare them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, get_args

from holdfast.errors import ConfigError
from holdfast.model.budget import Amount, OnExceeded, Per, to_units
from holdfast.model.clock import Duration, to_micros
from holdfast.model.interactive import is_interactive
from holdfast.model.names import check_name


class DeclaredBudget(NamedTuple):
    """A budget as it was declared: the bound in billionths, the period in microseconds."""

    name: str
    per: Per
    bound: int
    period: int | None
    on_exceeded: OnExceeded


class DeclaredBudgets:
    """The budgets of an app, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, DeclaredBudget] = {}

    def declare(self, name: str, limit: Amount, per: Per, window: Duration | None, on_exceeded: OnExceeded) -> None:
        where = f"budget {check_name(name, 'the name of a budget')}"
        for option, value, known in (("per", per, get_args(Per)), ("on_exceeded", on_exceeded, get_args(OnExceeded))):
            if value not in known:
                raise ConfigError(f"{where}: {option} must be one of {', '.join(known)}, not {str(value)[:60]!r}")
        period = None if window is None else to_micros(window, f"{where}: window")
        if period == 0:
            raise ConfigError(f"{where}: window must be longer than 0")
        budget = DeclaredBudget(name, per, to_units(limit, f"{where}: limit", ConfigError), period, on_exceeded)
        if self.by_name.get(name, budget) != budget and not is_interactive():
            raise ConfigError(f"{where} is declared twice, with different settings")
        self.by_name[name] = budget

    def check(self, name: str) -> None:
        """Raise ConfigError unless a budget with this name is declared."""
        if name not in self.by_name:
            known = f"; declared budgets: {', '.join(self.by_name)}" if self.by_name else ""
            raise ConfigError(f"budget {name!r} is not declared: add app.budget({name!r}, limit=…){known}")

    def __iter__(self) -> Iterator[DeclaredBudget]:
        return iter(list(self.by_name.values()))
