"""Query states and history entries, to compare them with the ledger."""

from __future__ import annotations

from collections import Counter
from typing import Any

from holdfast import Holdfast
from holdfast.database.statements import Statement


def fetch(app: Holdfast, sql: str) -> list[tuple[Any, ...]]:
    """Run a query and return its rows; `{}` is the prefix of Holdfast's table names.

    A query without it reads tables of the test, which only connections for SQL of tasks see.
    """
    database = app.store.database
    purpose = "client" if "{}" in sql else "transaction-of-test"
    prefix = "holdfast_" if database.display_url.startswith("sqlite") else '"holdfast".'
    return database.connection(purpose).run(
        lambda line: line.execute(Statement("test", sql.replace("{}", prefix), ()), {})
    )


def states(app: Holdfast) -> Counter[str]:
    return Counter(dict(fetch(app, "select state, count(*) from {}runs group by state")))


def records(app: Holdfast) -> Counter[str]:
    """Count the history entries by kind."""
    return Counter(dict(fetch(app, "select kind, count(*) from {}history group by kind")))


def taken_over(app: Holdfast) -> int:
    """Count the attempts that ended because their worker died."""
    counted = records(app)
    return counted["crashed"] + counted["worker_lost"]


def ended_once(app: Holdfast) -> bool:
    """Return whether every run has exactly one history entry for its end."""
    query = "select run from {}history where kind in ('done', 'failed', 'cancelled') group by run having count(*) > 1"
    runs, ended = fetch(
        app, "select (select count(*) from {}runs), (select count(distinct run) from {}history where kind = 'done')"
    )[0]
    return not fetch(app, query) and runs == ended
