"""A store on a fresh database with a manual clock, and shortcuts for common operations in tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.database import open_database
from holdfast.database.statements import Statement, StatementSource, render
from holdfast.model.ids import new_id
from holdfast.store import AttemptEnd, Claim, NewRun, Store
from holdfast.store.commands import (
    Command,
    NewCheckpoint,
    NewStepCheckpoint,
    Reply,
    RunToken,
    SpawnCommand,
    WaitCommand,
)
from holdfast.store.module import json_rows
from holdfast.store.propagation import encode_map_value
from holdfast.store.rows import RecoveryResult
from holdfast.store.waits import event_target

SECOND = 1_000_000
DAY = 86_400 * SECOND
CRASHED = '{"code":"crashed"}'
OVERDUE = '{"code":"deadline"}'
CANCELLED = '{"code":"cancelled"}'


class Clock:
    """A clock in microseconds since 1970 that moves only when `advance` is called."""

    def __init__(self, now: int = 1_800_000_000 * SECOND) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += round(seconds * SECOND)


class StoreHarness:
    """A database with one store, and optionally more."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = Clock()
        self._stores: list[Store] = []
        self.store = self.another_store()
        self._columns: list[str] = []
        self.claims: dict[str, Claim] = {}
        """The last claim of each run, which writes expect to hold, as those of a worker do."""

    def another_store(self, **settings: Any) -> Store:
        """Open another store on the database, as another process would."""
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

    # Queries

    def sql(self, text: str, **values: Any) -> list[tuple[Any, ...]]:
        """Execute SQL that may contain fragments of the dialect."""
        statement = render(StatementSource("test", None, "", text), self.store.database.dialect)
        self.store.prepare()
        line = self.store.database.connection("client")
        return line.run(lambda connection: connection.execute(statement, {"now": self.clock(), **values}))

    def user_sql(self, text: str) -> list[tuple[Any, ...]]:
        """Execute SQL on tables of the test, which only connections for SQL of tasks see."""
        line = self.store.database.connection("transaction-of-test")
        return line.run(lambda connection: connection.execute(Statement("test", text, ()), {}))

    def row(self, id: str) -> dict[str, Any]:
        """Return the complete row of a run."""
        names = (
            "seq lane tenant priority turn state held due_at deadline lifetime session fence attempt failures crashes"
            " max_crashes unique_name args result error options tags keep records created_at claimed_at started_at"
            " finished_at expires_at root parent spawn_key place generation resumed spent undos ending cause progress"
            " deaths isolation"
        )
        found = self.sql(
            f"select {', '.join(names.split())} from {{schema}}runs where id = cast(:id as {{uuid}})", id=id
        )
        return dict(zip(names.split(), found[0], strict=True))

    def rows(self, table: str) -> int:
        return int(self.sql(f"select count(*) from {{schema}}{table}")[0][0])

    def state(self, id: str) -> str:
        return str(self.row(id)["state"])

    def kinds(self, id: str) -> list[str]:
        """Return the kinds of a run's history entries in order."""
        return [str(record[2]) for record in self.store.queries.history(id)]

    # Operations

    def new(self, task: str = "task", **more: Any) -> NewRun:
        settings: dict[str, Any] = {"queue": "default", "args": "[[],{}]", "keep": 30 * DAY, **more}
        if "key" in settings:
            settings.setdefault("digest", "same")
        return NewRun(id=str(new_id()), task=task, **settings)

    def add(self, task: str = "task", **more: Any) -> str:
        return self.store.enqueuer.enqueue([self.new(task, **more)])[0]

    def add_many(self, count: int, **more: Any) -> list[str]:
        return self.store.enqueuer.enqueue([self.new(**more) for _ in range(count)])

    def session(self, name: str, lease: float = 60, info: str = "{}") -> str:
        self.store.sessions.open(name, f"worker {name}", round(lease * SECOND), info)
        return name

    def lane(self, task: str = "task", queue: str = "default") -> int:
        return self.store.lanes.ids([(queue, task)])[queue, task]

    def claim(self, session: str, wanted: int = 1, tasks: Iterable[str] = ("task",)) -> list[Claim]:
        claims = self.store.claims.claim(session, [self.lane(task) for task in tasks], wanted)
        self.claims |= {claim.id: claim for claim in claims}
        return claims

    def claim_isolated(self, session: str, most: int = 100, tasks: Iterable[str] = ("task",)) -> list[Claim]:
        return self.store.claims.claim_isolated(session, [self.lane(task) for task in tasks], most)

    def running(self, session: str, **more: Any) -> Claim:
        """Enqueue a run and claim it for the session."""
        id = self.add(**more)
        (claim,) = self.claim(session)
        assert claim.id == id
        return claim

    def end(self, session: str, claim: Claim, kind: str = "done", **more: Any) -> bool:
        """End an attempt and return whether the store accepted it."""
        ended = end_of(claim, kind, **more)
        if ended.in_tree and ended.parents is None:
            ended.parents = () if claim.parent is None else (str(claim.parent),)
        return ended.claim in self.store.attempts.end(session, [ended], claims=self.claims)

    def recover(self, *sessions: str) -> RecoveryResult:
        return self.store.sessions.recover(list(sessions), CRASHED)

    # Durable functions

    def write(self, session: str, *commands: Command) -> list[Reply]:
        return self.store.journal.write(session, commands, claims=self.claims)

    def record(self, session: str, claim: Claim, n: int, key: str | None = None, **more: Any) -> Reply:
        """Record a checkpoint."""
        (reply,) = self.store.journal.record(session, [record_of(claim, n, key, **more)])
        return reply

    def steps(self, id: str) -> list[tuple[Any, ...]]:
        """Return the checkpoints of a run in all generations: number, key, kind, value."""
        return self.sql(
            "select n, key, kind, value from {schema}checkpoints where run = cast(:id as {uuid}) order by n", id=id
        )

    def waits(self, id: str) -> dict[str, tuple[Any, ...]]:
        """Return the waits of a run by key: outcome, value."""
        rows = self.sql("select key, outcome, value from {schema}waits where run = cast(:id as {uuid})", id=id)
        return {key: (outcome, value) for key, outcome, value in rows}

    def wait(self, session: str, claim: Claim, kind: str, target: str | None = None, **more: Any) -> Reply:
        """Register a wait; by default with number 10 and its kind as the key."""
        (reply,) = self.write(session, wait_of(claim, kind, target, **more))
        return reply

    def suspend(self, session: str, claim: Claim, **more: Any) -> bool:
        return self.end(session, claim, "waiting", in_tree=True, **more)

    def waiting(self, session: str, kind: str, target: str | None = None, **more: Any) -> Claim:
        """Enqueue and claim a run, register a wait and suspend the run."""
        claim = self.running(session)
        self.wait(session, claim, kind, target, **more)
        assert self.suspend(session, claim)
        return claim

    def spawn(self, session: str, claim: Claim, count: int | None = None, **more: Any) -> list[str]:
        """Spawn children of the task `child`; with a count, as a map."""
        run = more.pop("run", {})
        command = spawn_of(claim, [self.new("child", **run) for _ in range(count or 1)], **more)
        if count is not None:
            command.kind = "map"
            command.value = encode_map_value(count, command.concurrency)
        self.write(session, command)
        return [child.id for child in command.children]

    def child(self, session: str) -> Claim:
        """Claim the next child."""
        (claim,) = self.claim(session, 1, ["child"])
        return claim

    def states(self, ids: Iterable[str]) -> list[str]:
        return [self.state(id) for id in ids]


def token_of(claim: Claim) -> RunToken:
    return RunToken(claim.id, claim.seq, claim.fence, claim.generation)


def record_of(claim: Claim, n: int, key: str | None = None, **more: Any) -> NewCheckpoint:
    settings: dict[str, Any] = {"kind": "step", "value": f'"value {n}"', **more}
    return NewCheckpoint(*token_of(claim), n, f"step {n}" if key is None else key, **settings)


def steps_of(claims: Sequence[Claim], n: int) -> tuple[str, int]:
    """Return the arguments of `record_steps` for one step of each claim."""
    steps = [NewStepCheckpoint(*token_of(claim)[:3], n, f"step {n}", f'"value {n}"', 7) for claim in claims]
    return json_rows(steps), len(steps)


def wait_of(claim: Claim, kind: str, target: str | None = None, n: int = 10, key: str = "", **more: Any) -> WaitCommand:
    """Return a wait command. The target of an event is its name, that of children the key of their call."""
    if kind == "event":
        more |= {"name": target}
        target = event_target(more.setdefault("tenant", None), str(target))
    elif kind == "children":
        target = f"{claim.generation}:{target}"
    return WaitCommand(token_of(claim), key or kind, kind, target, n=n, **more)  # type: ignore[arg-type]


def spawn_of(claim: Claim, children: list[NewRun], n: int = 1, key: str = "call#1", **more: Any) -> SpawnCommand:
    return SpawnCommand(token_of(claim), n, key, "spawn", children, f'"{children[0].id}"', **more)


STATE_AFTER = {
    "done": "done",
    "failed": "failed",
    "retrying": "scheduled",
    "timed_out": "scheduled",
    "handed_back": "ready",
    "crashed": "ready",
    "waiting": "waiting",
    "restarted": "ready",
    "undoing": "ready",
}


def end_of(claim: Claim, kind: str = "done", **more: Any) -> AttemptEnd:
    """Return the end of an attempt with the fields of its kind."""
    settings: dict[str, Any] = {"state": more.get("state") or STATE_AFTER[kind]}
    if kind == "done":
        settings["result"] = '"ok"'
    elif kind in ("failed", "retrying", "timed_out", "undoing"):
        settings |= {"error": '{"code":"error"}', "failed": 1}
    if settings["state"] == "scheduled":
        settings["delay"] = 10 * SECOND
    return AttemptEnd(claim.id, claim.seq, claim.fence, kind, **(settings | more))  # type: ignore[arg-type]
