"""Budgets: what runs may spend, their totals, and the runs that wait until there is room.

A spend is recorded together with its counters, in the transaction of the committer. If the total is then above the
bound, the run waits like for an event, until the bound is raised or the period ends. Lock order: the budget, like an
event, before runs; counters after runs. Decision 47 has the reasons.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, get_args

import msgspec

from holdfast.model.budget import Per, from_units
from holdfast.model.run import FINAL_STATES
from holdfast.store.commands import SpendCommand, WaitCommand, WaitOutcome
from holdfast.store.module import StoreModule, Tx, history_row, id_rows, in_chunks, json_rows
from holdfast.store.run_tree import LockedRun, lock_runs
from holdfast.store.typed_rows import RowReader
from holdfast.store.waits import resolve_waits, wake_runs

BUDGET_TARGET = "budget:"
"""How the target of a wait for a budget begins; the counter follows."""
MAX_WOKEN_RUNS = 500
MAX_LISTED_TOTALS = 200


class BudgetRow(NamedTuple):
    """A budget. Amounts are in billionths, `period` in microseconds. While `set_at` is set, the code declares
    `declared_bound`."""

    name: str
    per: str
    bound: int
    period: int | None
    on_exceeded: str
    declared_bound: int | None = None
    set_at: int | None = None
    set_by: str | None = None


class TotalRow(NamedTuple):
    """The counter of a budget. `waiting`: runs that wait for it."""

    name: str
    per: str
    key: str
    spent: int
    bound: int
    set_at: int | None
    set_by: str | None
    waiting: int


class SpentRow(NamedTuple):
    """What was spent of a counter in the period that began at `period_start`, and its own bound."""

    counter: str
    spent: int
    period_start: int
    bound: int | None


class BudgetWaiterRow(NamedTuple):
    """A wait for a counter that has room again: what is allowed now, and who has set that."""

    run: str
    generation: int
    key: str
    counter: str
    bound: int
    set_by: str | None


class RunSpendingRow(NamedTuple):
    """What a run has spent of a budget, ever."""

    run: str
    name: str
    total: int


class WaitingRow(NamedTuple):
    """How many runs wait for a budget."""

    name: str
    waiting: int


_BUDGET_ROWS = RowReader(BudgetRow)
_WAITER_ROWS = RowReader(BudgetWaiterRow)
_RUN_ROWS = RowReader(RunSpendingRow)
_WAITING_ROWS = RowReader(WaitingRow)
_SPENT_ROWS = RowReader(SpentRow)
_TOTAL_ROWS = RowReader(TotalRow)


class BudgetStore(StoreModule):
    """Budgets and their totals."""

    def declare(self, budgets: Iterable[tuple[str, str, int, int | None, str]], *, overwrite: bool = True) -> None:
        """Declare budgets: name, what it is per, bound, period, and what happens to runs that exceed it.

        Without `overwrite`, keep what others have declared.

        Bounds that were set at run time stay in force. Timers wake the runs that a new bound lets continue.
        """
        rows = json_rows(
            {"name": name, "per": per, "bound": bound, "period": period, "on_exceeded": on_exceeded}
            for name, per, bound, period, on_exceeded in budgets
        )
        if rows != "[]":
            self._execute("client", "declare_budgets" if overwrite else "add_budgets", rows=rows)

    def set(self, name: str, bound: int, by: str) -> bool:
        """Set the bound of a budget until it is reset; False if it doesn't exist."""
        return self._change(name, "set_budget", bound=bound, set_by=by)

    def reset(self, name: str) -> bool:
        """Return to the declared bound; False if no other is set."""
        return self._change(name, "reset_budget")

    def _change(self, name: str, statement: str, **values: Any) -> bool:
        if not self._execute("client", statement, name=name, **values):
            return False
        self.wake(name)
        return True

    def set_total(self, budget: BudgetRow, key: str, bound: int | None, by: str | None) -> None:
        """Set the bound of one run, tree or tenant; None returns to that of the budget."""
        run = None if budget.per == "tenant" else key

        def work(tx: Tx) -> None:
            lock_budgets(tx, [budget.name])
            tx.execute(
                "set_total", counter=counter_name(budget.name, budget.per, key), name=budget.name, per=budget.per,
                key=key, run=run, bound=bound, set_by=by,
            )  # fmt: skip
            tx.execute("check_budget_soon", name=budget.name)

        self._transaction("client", work)
        self.wake(budget.name)

    def wake(self, name: str) -> int:
        """Wake the runs that wait for a budget and have room; return how many. Timers continue after a crash."""
        woken, more = 0, True
        while more:
            number, more = self._transaction("client", lambda tx: _wake(tx, name))
            woken += number
        return woken

    def find(self, name: str) -> BudgetRow | None:
        """Return the budget with this name."""
        rows = self._execute("client", "read_budgets", rows=json_rows([{"name": name}]))
        return _BUDGET_ROWS.read(rows[0]) if rows else None

    def list_all(self) -> list[BudgetRow]:
        """Return all budgets by name."""
        return _BUDGET_ROWS.read_all(self._execute("read", "list_budgets"))

    def totals(self, name: str, key: str | None = None, size: int = MAX_LISTED_TOTALS) -> list[TotalRow]:
        """Return the totals of a budget: those that runs wait for, then the highest ones; or only that of a key."""
        return _TOTAL_ROWS.read_all(self._execute("read", "list_budget_totals", name=name, key=key, size=size))

    def root_of(self, run: str) -> str | None:
        """Return the root of a run's tree, None if the run doesn't exist."""
        rows = self._execute("client", "read_root", run=run)
        return str(rows[0][0]) if rows else None

    def count_waiting(self) -> dict[str, int]:
        """Return how many runs wait for each budget; counted up to 1,000."""
        return dict(_WAITING_ROWS.read_all(self._execute("read", "count_budget_waiters")))

    def spending(self, runs: Sequence[str]) -> dict[str, dict[str, int]]:
        """Return what runs have spent, by run and name of the budget, whatever the budgets are per."""
        found: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for chunk in in_chunks(runs):
            rows = self._execute("read", "read_spending", rows=id_rows(chunk))
            for row in _RUN_ROWS.read_all((str(run), *rest) for run, *rest in rows):
                found[row.run][row.name] = row.total
        return found


def counter_name(name: str, per: str, key: str) -> str:
    """Return how waits name a counter."""
    return msgspec.json.encode([name, per, key]).decode()


def parse_counter_name(counter: str) -> tuple[str, str, str]:
    """Return budget, what it is per, and key. A corrupt text counts as the name of a budget."""
    try:
        name, per, key = msgspec.json.decode(counter, type=tuple[str, str, str])
    except msgspec.MsgspecError:
        return counter, "run", ""
    return name, per, key


def counter_key(per: str, run: LockedRun) -> str:
    """Return the key of the counter of a run."""
    if per == "tenant":
        return run.tenant or ""
    return (run.root or run.id) if per == "tree" else run.id


# Inside the transaction of the caller


def lock_budgets(tx: Tx, names: Iterable[str]) -> dict[str, BudgetRow]:
    """Lock budgets, and read them."""
    return _read(tx, "lock_budgets", names)


def _read(tx: Tx, statement: str, names: Iterable[str]) -> dict[str, BudgetRow]:
    wanted = sorted(set(names))
    found = tx.execute(statement, rows=json_rows({"name": name} for name in wanted)) if wanted else []
    return {row.name: row for row in _BUDGET_ROWS.read_all(found)}


class _Counter:
    """A counter in one transaction: what is added, then what is spent."""

    def __init__(self, budget: BudgetRow | None, per: str, name: str, key: str) -> None:
        self.row: dict[str, Any] = {
            "counter": counter_name(name, per, key), "name": name, "per": per, "key": key,
            "run": None if per == "tenant" else key, "amount": 0, "waiting": 0,
            "period": None if budget is None or budget.per != per else budget.period,
        }  # fmt: skip
        self.spent = 0
        self.bound: int | None = None if budget is None else budget.bound
        self.period_end: int | None = None

    def store(self, spent: int, period_start: int, bound: int | None) -> None:
        self.spent = spent
        self.bound = self.bound if bound is None else bound
        period = self.row["period"]
        self.period_end = None if period is None else period_start + period

    @property
    def is_exceeded(self) -> bool:
        return self.bound is not None and self.spent > self.bound


class Spending:
    """What one transaction spends, and the runs in it that wait until there is room."""

    def __init__(self, tx: Tx, waits: Iterable[WaitCommand]) -> None:
        """Lock the budgets that runs begin to wait for. Before runs are locked."""
        self._tx = tx
        self._budgets = lock_budgets(tx, (str(wait.name) for wait in waits))
        self._counters: dict[tuple[str, str, str], _Counter] = {}

    def add(
        self, spends: Sequence[tuple[SpendCommand, LockedRun]], waits: Iterable[tuple[WaitCommand, LockedRun]]
    ) -> list[str]:
        """Add what locked runs spend to the counters; return what is recorded of each spend, as JSON text."""
        names = {each.budget for command, _ in spends for each in command.spends} - self._budgets.keys()
        self._budgets |= _read(self._tx, "read_budgets", names)
        for command, run in spends:
            for each in command.spends:
                for counter in self._counters_of(each.budget, run):
                    counter.row["amount"] += each.amount
        for wait, run in waits:
            self._counter(str(wait.name), run).row["waiting"] = 1
        by_name = {counter.row["counter"]: counter for counter in self._counters.values()}
        rows = [by_name[name].row for name in sorted(by_name)]
        for row in _SPENT_ROWS.read_all(self._tx.execute("add_spending", rows=json_rows(rows)) if rows else ()):
            by_name[row.counter].store(row.spent, row.period_start, row.bound)
        return self._records(spends)

    def _records(self, spends: Sequence[tuple[SpendCommand, LockedRun]]) -> list[str]:
        """Return what is recorded of spends: what each of them found, in order."""
        before = {name: counter.spent - counter.row["amount"] for name, counter in self._counters.items()}
        records = []
        for command, run in spends:
            found = []
            for each in command.spends:
                per, key = self._scope(each.budget, run)
                counter = self._counters[each.budget, per, key]
                spent = before[each.budget, per, key] = before[each.budget, per, key] + each.amount
                bound = counter.bound
                found.append(
                    {
                        "budget": each.budget, "amount": _text(each.amount), "spent": _text(spent),
                        "limit": None if bound is None else _text(bound),
                        "exceeded": bound is not None and spent > bound,
                    }
                )  # fmt: skip
            records.append(msgspec.json.encode(found).decode())
        return records

    def check(self, wait: WaitCommand, run: LockedRun) -> WaitOutcome | None:
        """Return the outcome of a wait for room, None if it has to wait."""
        counter = self._counter(str(wait.name), run)
        if not counter.is_exceeded:
            return WaitOutcome("budget", None)
        budget = self._budgets[str(wait.name)]
        if budget.on_exceeded == "wait":
            return None
        return WaitOutcome("exceeded", self.describe(wait, run))

    def describe(self, wait: WaitCommand, run: LockedRun) -> str:
        """Say as JSON text which budget stops a run."""
        counter = self._counter(str(wait.name), run)
        per, key = self._scope(str(wait.name), run)
        data = {
            "budget": wait.name, "spent": _text(counter.spent), "limit": _text(counter.bound or 0), "per": per,
            "key": key,
        }  # fmt: skip
        return msgspec.json.encode(data).decode()

    def wait_row(self, wait: WaitCommand, run: LockedRun) -> dict[str, Any]:
        """Return what the row of a wait has that the command doesn't: it is due when the period ends."""
        counter = self._counter(str(wait.name), run)
        target = BUDGET_TARGET + str(counter.row["counter"])
        return {"kind": "event", "eager": 2, "target": target, "due_at": counter.period_end}

    def add_history(self, session: str, waits: Sequence[tuple[WaitCommand, LockedRun]]) -> None:
        """Add a history entry for each run that begins to wait or is refused."""
        entries = [(run.id, run.attempt, "budget_exceeded", session, self.describe(wait, run)) for wait, run in waits]
        _add_history(self._tx, entries)

    def _scope(self, name: str, run: LockedRun) -> tuple[str, str]:
        budget = self._budgets.get(name)
        per = "run" if budget is None or budget.per not in get_args(Per) else budget.per
        return per, counter_key(per, run)

    def _counter(self, name: str, run: LockedRun) -> _Counter:
        per, key = self._scope(name, run)
        return self._named(name, per, key)

    def _named(self, name: str, per: str, key: str) -> _Counter:
        found = self._counters.get((name, per, key))
        if found is None:
            found = self._counters[name, per, key] = _Counter(self._budgets.get(name), per, name, key)
        return found

    def _counters_of(self, name: str, run: LockedRun) -> Iterable[_Counter]:
        """Yield the counter that is compared with the bound, and that of the run itself."""
        yield (counter := self._counter(name, run))
        if counter.row["per"] != "run":
            yield self._named(name, "run", run.id)


def _wake(tx: Tx, name: str) -> tuple[int, bool]:
    """Resolve a batch of the waits for a budget that have room; return how many, and whether there are more.

    A run that has failed or was cancelled keeps its wait, resolved, for a retry.
    """
    if name not in lock_budgets(tx, [name]):
        return 0, False
    rows_found = tx.execute("find_budget_waiters", name=name)
    found = _WAITER_ROWS.read_all((str(run), *rest) for run, *rest in rows_found)
    picked, more = found[:MAX_WOKEN_RUNS], len(found) > MAX_WOKEN_RUNS
    runs = lock_runs(tx, (row.run for row in picked))
    rows, entries = [], []
    for row in picked:
        rows.append({"run": row.run, "generation": row.generation, "key": row.key, "outcome": "event", "value": None})
        locked = runs.get(row.run)
        if locked is not None and locked.state not in FINAL_STATES and locked.generation == row.generation:
            data = {"budget": name, "limit": _text(row.bound)} | ({"by": row.set_by} if row.set_by else {})
            entries.append((locked.id, locked.attempt, "budget_raised", None, msgspec.json.encode(data).decode()))
    if rows:
        resolve_waits(tx, rows)
        _add_history(tx, entries)
        wake_runs(tx, [id for id, run in runs.items() if run.state == "waiting"])
    if not more:
        if counters := sorted({row.counter for row in picked}):
            tx.execute("clear_waiting", rows=json_rows({"counter": counter} for counter in counters))
        tx.execute("clear_budget_check", name=name)
    tx.counts_ready_runs = True
    return len(rows), more


def wake_next(tx: Tx) -> int:
    """Wake a batch of runs for the next budget that was changed; return how many, at least 1 if there was one."""
    picked = tx.execute("pick_budgets_to_check")
    return max(_wake(tx, str(picked[0][0]))[0], 1) if picked else 0


def _add_history(tx: Tx, entries: Sequence[tuple[str, int, str, str | None, str]]) -> None:
    """Add history entries of locked runs: run, attempt, kind, session and data of each."""
    if not entries:
        return
    counts: defaultdict[str, int] = defaultdict(int)
    for run, *_ in entries:
        counts[run] += 1
    numbered = tx.execute(
        "number_history", rows=json_rows({"id": run, "count": count} for run, count in sorted(counts.items()))
    )
    first = {str(run): n - counts[str(run)] + 1 for run, n in numbered}
    rows = []
    for run, attempt, kind, session, data in entries:
        rows.append(history_row(run, first[run], kind, attempt, session=session, data=data))
        first[run] += 1
    tx.execute("add_history", rows=json_rows(rows))


def _text(units: int) -> str:
    return format(from_units(units), "f")
