"""A store on a fresh database with a clock that only moves when told, and short words for what tests do with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.database import open_database
from holdfast.database.statements import Source, render
from holdfast.model.ids import new_id
from holdfast.store import Claim, End, NewRun, Store
from holdfast.store.rows import Recovered

SECOND = 1_000_000
DAY = 86_400 * SECOND
CRASHED = '{"code":"crashed"}'
OVERDUE = '{"code":"deadline"}'
CANCELLED = '{"code":"cancelled"}'


class Clock:
    """Microseconds since 1970, standing still until `advance` is called."""

    def __init__(self, now: int = 1_800_000_000 * SECOND) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)


class World:
    """One database, one store on it, and any number of further ones."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = Clock()
        self._stores: list[Store] = []
        self.store = self.another_store()
        self._columns: list[str] = []

    def another_store(self, **settings: Any) -> Store:
        """A store as another process would have it."""
        settings.setdefault("clock", self.clock)
        store = Store(open_database(self.url, "holdfast"), **settings)
        self._stores.append(store)
        return store

    def close(self) -> None:
        for store in self._stores:
            store.close()

    @property
    def on_postgres(self) -> bool:
        return self.store.database.dialect.name == "postgres"

    # Looking

    def sql(self, text: str, **values: Any) -> list[tuple[Any, ...]]:
        """Raw SQL, with the dialect's fragments."""
        statement = render(Source("test", None, "", text), self.store.database.dialect)
        self.store.prepare()
        line = self.store.database.line("client")
        return line.run(lambda connection: connection.execute(statement, {"now": self.clock(), **values}))

    def row(self, id: str) -> dict[str, Any]:
        """A run's row, whole."""
        names = (
            "seq lane tenant priority turn state held due_at deadline lifetime session fence attempt failures crashes"
        )
        names += " unique_name args result error options tags keep records created_at claimed_at started_at"
        names += " finished_at expires_at"
        found = self.sql(
            f"select {', '.join(names.split())} from {{schema}}runs where id = cast(:id as {{uuid}})", id=id
        )
        return dict(zip(names.split(), found[0], strict=True))

    def rows(self, table: str) -> int:
        return int(self.sql(f"select count(*) from {{schema}}{table}")[0][0])

    def state(self, id: str) -> str:
        return str(self.row(id)["state"])

    def kinds(self, id: str) -> list[str]:
        """The kinds of a run's kept records, in order."""
        return [str(record[2]) for record in self.store.views.history(id)]

    # Doing

    def new(self, task: str = "task", **more: Any) -> NewRun:
        settings: dict[str, Any] = {"queue": "default", "args": "[[],{}]", "keep": 30 * DAY, **more}
        if "key" in settings:
            settings.setdefault("digest", "same")
        return NewRun(id=str(new_id()), task=task, **settings)

    def add(self, task: str = "task", **more: Any) -> str:
        return self.store.intake.add([self.new(task, **more)])[0]

    def add_many(self, count: int, **more: Any) -> list[str]:
        return self.store.intake.add([self.new(**more) for _ in range(count)])

    def session(self, name: str, lease: float = 60) -> str:
        self.store.workers.open(name, f"worker {name}", round(lease * SECOND), "{}")
        return name

    def lane(self, task: str = "task", queue: str = "default") -> int:
        return self.store.lanes.ids([(queue, task)])[queue, task]

    def claim(self, session: str, wanted: int = 1, tasks: Iterable[str] = ("task",)) -> list[Claim]:
        return self.store.claims.claim(session, [self.lane(task) for task in tasks], wanted)

    def running(self, session: str, **more: Any) -> Claim:
        """A new run, claimed by the session."""
        id = self.add(**more)
        (claim,) = self.claim(session)
        assert claim.id == id
        return claim

    def end(self, session: str, claim: Claim, kind: str = "done", **more: Any) -> bool:
        """End one attempt; whether it counted."""
        return claim.id in self.store.attempts.end(session, [end_of(claim, kind, **more)])

    def recover(self, *sessions: str) -> Recovered:
        return self.store.workers.recover(list(sessions), CRASHED)


STATE_AFTER = {
    "done": "done",
    "failed": "failed",
    "retrying": "scheduled",
    "timed_out": "scheduled",
    "handed_back": "ready",
}


def end_of(claim: Claim, kind: str = "done", **more: Any) -> End:
    """The end of an attempt, with what belongs to its kind."""
    settings: dict[str, Any] = {"state": STATE_AFTER[kind]}
    if kind == "done":
        settings["result"] = '"ok"'
    elif kind != "handed_back":
        settings |= {"error": '{"code":"error"}', "failed": 1}
    if settings["state"] == "scheduled":
        settings["delay"] = 10 * SECOND
    return End(claim.id, claim.seq, claim.fence, kind, **(settings | more))  # type: ignore[arg-type]
