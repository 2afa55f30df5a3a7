"""Counting what the store's history says, for comparing it with the ledger."""

from __future__ import annotations

from collections import Counter
from typing import Any

from holdfast import Holdfast
from holdfast.database.statements import Statement


def ask(app: Holdfast, sql: str) -> list[tuple[Any, ...]]:
    """Rows of a query of the test's own; `{}` stands before names of tables."""
    database = app.store.database
    prefix = "holdfast_" if database.display_url.startswith("sqlite") else '"holdfast".'
    return database.connection("client").run(
        lambda line: line.execute(Statement("test", sql.replace("{}", prefix), ()), {})
    )


def states(app: Holdfast) -> Counter[str]:
    return Counter(dict(ask(app, "select state, count(*) from {}runs group by state")))


def records(app: Holdfast) -> Counter[str]:
    """How many history rows of each kind there are."""
    return Counter(dict(ask(app, "select kind, count(*) from {}history group by kind")))


def taken_over(app: Holdfast) -> int:
    """How many attempts ended because their worker died."""
    counted = records(app)
    return counted["crashed"] + counted["worker_lost"]


def ended_once(app: Holdfast) -> bool:
    """Whether every run has exactly one record of its end."""
    query = "select run from {}history where kind in ('done', 'failed', 'cancelled') group by run having count(*) > 1"
    runs, ended = ask(
        app, "select (select count(*) from {}runs), (select count(distinct run) from {}history where kind = 'done')"
    )[0]
    return not ask(app, query) and runs == ended
