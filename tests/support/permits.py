"""Compare the counters of limits with a recount of the runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from holdfast import Holdfast
from holdfast.database.statements import StatementSource, render
from holdfast.store import Store


def rows(store: Store, text: str) -> list[tuple[Any, ...]]:
    statement = render(StatementSource("test", None, "", text), store.database.dialect)
    return store.database.connection("client").run(lambda connection: connection.execute(statement, {"now": None}))


def in_use(store: Store) -> dict[str, int]:
    """Return the permits in use according to the counters."""
    return {place: used for place, used in rows(store, "select place, used from {schema}limits") if used}


def recount(store: Store) -> dict[str, int]:
    """Return the same according to the claimed runs."""
    text = "select limits from {schema}runs where session is not null and limits is not null"
    return dict(Counter(place for (limits,) in rows(store, text) for place in msgspec.json.decode(limits)))


def parked_and_forgotten(store: Store) -> list[Any]:
    """Return parked runs whose counter no worker will check."""
    text = (
        "select r.id, r.parked_on from {schema}runs r where r.held = 'full' and not exists ("
        "select 1 from {schema}limits l where l.place = r.parked_on and l.look_at is not null)"
    )
    return rows(store, text)


def starts(app: Holdfast) -> list[int]:
    """Return the start times of attempts by the database clock, in order: microseconds."""
    return sorted(since for (since,) in rows(app.store, "select since from {schema}history where since is not null"))
