"""The command `budgets`."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

import click

from holdfast.cli.completion import complete_runs
from holdfast.cli.options import by_option
from holdfast.cli.output import TableColumn, format_ago, format_duration, note, show_json, show_table
from holdfast.cli.root import SharedOptions, holdfast, pass_shared
from holdfast.model.budget import format_amount

if TYPE_CHECKING:
    from holdfast.control.budgets import BudgetInfo, BudgetTotal

BUDGET_COLUMNS = (
    TableColumn("BUDGET", whole=True),
    TableColumn("PER", whole=True),
    TableColumn("KEY", whole=True),
    TableColumn("SPENT", right=True),
    TableColumn("LIMIT", right=True),
    TableColumn("WINDOW", drop=1),
    TableColumn("WAITING", right=True),
)
USAGE = "Use `holdfast budgets [NAME]`, `holdfast budgets set NAME LIMIT` or `holdfast budgets reset NAME`."


@holdfast.command()
@click.argument("words", nargs=-1, metavar="[NAME | set NAME LIMIT | reset NAME]")
@click.option("--run", metavar="RUN", shell_complete=complete_runs, help="Only this run, or its tree.")
@click.option("--tenant", metavar="NAME", help="Only this tenant.")
@by_option
@pass_shared
def budgets(shared: SharedOptions, words: tuple[str, ...], run: str | None, tenant: str | None, by: str | None) -> None:
    """List budgets with what was spent and what waits for them, or change what a budget allows.

    One line per run, tree or tenant: those that runs wait for, then the highest totals; with NAME, only that budget.
    Runs that wait continue within a second of a raise.

    \b
      set    change the limit: of all, or of one run, tree or tenant
      reset  return to what the code declares, or to the budget's limit

    \b
    Examples:
      holdfast budgets
      holdfast budgets usd --json
      holdfast budgets set usd 10
      holdfast budgets set usd 25 --run 0199a3f2-6c1e
      holdfast budgets set usd 100 --tenant acme
      holdfast budgets reset usd
    """
    from holdfast.cli.connect import connect, connect_or_empty

    if len(words) < 2 and words not in (("set",), ("reset",)):
        if run is not None or tenant is not None:
            raise click.UsageError("--run and --tenant apply to `holdfast budgets set` and `holdfast budgets reset`.")
        with connect_or_empty(shared) as control:
            found = control.budgets.list(words[0] if words else None)
        _show(shared, found, one=False)
        return
    action, name, *rest = (*words, "")
    if action not in ("set", "reset") or len(words) != (3 if action == "set" else 2):
        raise click.UsageError(USAGE)
    limit = _amount(rest[0]) if action == "set" else Decimal(0)
    with connect(shared) as control:
        id = None if run is None else control.runs.find(run)
        if action == "set":
            changed = control.budgets.set(name, limit, run=id, tenant=tenant, by=by)
        else:
            changed = control.budgets.reset(name, run=id, tenant=tenant)
    _show(shared, [changed], one=True)


def _show(shared: SharedOptions, found: list[BudgetInfo], *, one: bool) -> None:
    if shared.json:
        show_json(found[0] if one else found)
        return
    rows = [row for budget in found for row in _rows(budget)]
    show_table(BUDGET_COLUMNS, rows, 'no budgets: declare app.budget("name", limit=…) and start a worker')
    for budget in found:
        if budget.set_at is not None and budget.declared_limit is not None:
            note(
                f"budget {budget.name} was set to {format_amount(budget.limit)} by {budget.set_by} "
                f"({format_ago(budget.set_at)}); the code declares {format_amount(budget.declared_limit)}"
            )


def _rows(budget: BudgetInfo) -> list[list[str]]:
    window = "" if budget.window is None else format_duration(budget.window)
    if not budget.totals:
        return [[budget.name, budget.per, "", "0", format_amount(budget.limit), window, "0"]]
    return [_row(budget, total, window) for total in budget.totals]


def _row(budget: BudgetInfo, total: BudgetTotal, window: str) -> list[str]:
    waiting = f"{total.waiting:,}" + ("+" if total.waiting >= 1000 else "")
    return [
        budget.name, budget.per, total.key, format_amount(total.spent), format_amount(total.limit), window, waiting,
    ]  # fmt: skip


def _amount(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise click.UsageError(f"{text!r} is not a number. {USAGE}") from None
