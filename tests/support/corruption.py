"""A database in which one of two rows of each kind is corrupted, as another program or a broken disk could leave it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast import Context, Graph, Holdfast, Retry, Run
from holdfast.errors import HoldfastError
from holdfast.policy.schedule_timing import Timing
from holdfast.store import NewRun
from holdfast.store.schedule_definitions import DeclaredSchedule, ScheduleRules
from tests.support.history_queries import fetch
from tests.support.wait_until import wait_until

LEASE_S = 20
WAIT_S = 30
MARKS = ("broken", "sound")
KINDS = (
    "job", "limited", "stranded", "stranded_limited", "isolated", "later", "overdue", "sleeper", "waiter", "parked",
    "receiver", "parent", "graph",
)  # fmt: skip
"""Kinds of active runs: one of each stays healthy, the other is corrupted."""
BOUNDED = ("schedules", "workers", "limits")
"""Tables whose constraints on PostgreSQL refuse most of these values; a table may be damaged in spite of them."""
SUSPENDED = ("sleeper", "waiter", "receiver", "parent")
KINDS_OF_LIMITED = ("limited", "stranded_limited", "parked")


def build_app(url: str) -> Holdfast:
    """Return an app with the tasks of the dataset."""
    app = Holdfast(url)
    app.limit("each", concurrency=2, rate="1000/s", by="mark")

    @app.task(name="job", retry=Retry(max_attempts=1))
    async def job(mark: str) -> str:
        return mark

    @app.task(name="limited", limits=["each"], retry=Retry(max_attempts=1))
    async def limited(mark: str) -> str:
        return mark

    @app.task(name="sleeper")
    async def sleeper(ctx: Context, mark: str) -> str:
        await ctx.step(str, mark)
        await ctx.write(mark)
        await ctx.sleep(3600)
        return mark

    @app.task(name="waiter")
    async def waiter(ctx: Context, mark: str) -> str:
        return f"{mark} {await ctx.wait_for('go')}"

    @app.task(name="receiver")
    async def receiver(ctx: Context, mark: str) -> str:
        return f"{await ctx.receive('first')} {await ctx.receive('second')}"

    @app.task(name="parent")
    async def parent(ctx: Context, mark: str) -> str:
        return str(await ctx.call(child, mark))

    @app.task(name="child", queue="later")
    async def child(mark: str) -> str:
        return mark

    app.schedule("own", job, every=3600, args=("own",))
    return app


@dataclass
class Runs:
    """Ids of the runs of a dataset: active ones by kind and mark, finished ones to keep and to prune by mark."""

    active: dict[tuple[str, str], str]
    kept: dict[str, str]
    old: dict[str, str]

    def of(self, mark: str) -> Iterator[str]:
        """Yield the active runs with this mark."""
        for (_, marked), id in self.active.items():
            if marked == mark:
                yield id


def build_dataset(url: str) -> Runs:
    """Create two runs of each kind, a dead session, counters, events, schedules, and statistics."""
    app = build_app(url)
    task = app.registry.get
    kept = {mark: task("job").options(tags=["t"], key=mark).enqueue(mark) for mark in MARKS}
    old = {mark: task("job").enqueue(mark) for mark in MARKS}
    active: dict[tuple[str, str], Run[Any]] = {
        (kind, mark): task(kind).options(tags=["t"], key=mark).enqueue(mark) for kind in SUSPENDED for mark in MARKS
    }
    for mark in MARKS:
        active["receiver", mark].send("first", "one")
    with app.worker(lease=LEASE_S, queues=["default"]):
        wait_until(
            lambda: fetch(app, "select count(*) from {}runs where state = 'waiting'")[0][0] == 2 * len(SUSPENDED),
            WAIT_S,
        )
        for run in (*kept.values(), *old.values()):
            run.result(timeout=WAIT_S)
    for mark in MARKS:
        for kind in ("job", "stranded", "isolated"):
            active[kind, mark] = task("job").options(tags=["t"]).enqueue(mark)
        for kind in KINDS_OF_LIMITED:
            active[kind, mark] = task("limited").options(tags=["t"]).enqueue(mark)
        active["later", mark] = task("job").options(tags=["t"], delay=3600).enqueue(mark)
        active["overdue", mark] = task("job").options(tags=["t"], deadline=3600).enqueue(mark)
        graph = Graph("graph", key=mark)
        node = graph.add(task("job"), mark, name="node", after=[graph.gate("ok")])
        graph.add(task("job"), node.output, name="last", when=node.output == mark)
        active["graph", mark] = app.submit(graph)
    runs = Runs(
        {key: str(run.id) for key, run in active.items()},
        {mark: str(run.id) for mark, run in kept.items()},
        {mark: str(run.id) for mark, run in old.items()},
    )
    _create_dead_session(app, runs)
    _create_other_rows(app, runs)
    app.store.stats.aggregate()
    if app.store.database.dialect.name == "postgres":
        for table in BOUNDED:
            fetch(app, f"alter table {{}}{table} drop constraint holdfast_{table}_bounds")
    app.close()
    return runs


def _create_dead_session(app: Holdfast, runs: Runs) -> None:
    """Create a session of a dead process with some of the runs."""
    app.store.sessions.open("dead", "dead", 3_600_000_000, '{"queues": null}')
    stranded = _list(runs.active[kind, mark] for kind in ("stranded", "stranded_limited") for mark in MARKS)
    fetch(
        app,
        f"update {{}}runs set state = 'running', session = 'dead', fence = 1, attempt = 1 where id in ({stranded})",
    )


def _create_other_rows(app: Holdfast, runs: Runs) -> None:
    """Create schedules, isolated runs, parked runs and statistics."""
    timing, rules = Timing(every=60_000_000), ScheduleRules("latest", "skip", 0)
    declared = [
        DeclaredSchedule(mark, timing, rules, NewRun("", "default", "job", f'{{"mark":"{mark}"}}', 86_400_000_000))
        for mark in MARKS
    ]
    app.store.schedules.declare("x", [*declared, *(DeclaredSchedule(f"trigger {mark}", timing) for mark in MARKS)])
    isolated = _list(runs.active["isolated", mark] for mark in MARKS)
    fetch(app, f"update {{}}runs set held = 'isolated', isolation = 2 where id in ({isolated})")
    for mark in MARKS:
        place = f'["each","\\"{mark}\\""]'
        fetch(
            app,
            "insert into {}limits (place, name, used, log, look_at, touched_at)"
            f" values ('{place}', 'each', 1, '[]', 1, 1) on conflict do nothing",
        )
        parked = runs.active["parked", mark]
        fetch(app, f"update {{}}runs set held = 'full', parked_on = '{place}' where id = '{parked}'")
        fetch(app, f"insert into {{}}slots (schedule, slot, asked, run) values ('{mark}', 1, 0, '{runs.kept[mark]}')")
        fetch(
            app,
            f"insert into {{}}polls (trigger_name, at, took, found, made) values ('trigger {mark}', 1000000, 1, 1, 1)",
        )
        fetch(
            app,
            "insert into {}tallies (span, at, lane, state, runs, waits, takes) select 60000000, at - at % 60000000,"
            f" (select id from {{}}lanes where task = 'job'), '{'failed' if mark == 'broken' else 'done'}', 1,"
            " '[[1,1]]', '[[1,1]]' from (select max(created_at) - 180000000 as at from {}runs) recent",
        )


def _list(ids: Any) -> str:
    return ", ".join(f"'{id}'" for id in ids)


class Dataset:
    """A private copy of the dataset: corrupt it, make everything due, and check what goes on."""

    def __init__(self, url: str, runs: Runs) -> None:
        self.app = build_app(url)
        self.url = url
        self.runs = runs

    def where(self, table: str) -> str:
        """Return the condition of the rows to corrupt."""
        broken = _list([*self.runs.of("broken"), self.runs.kept["broken"]])
        conditions = {
            "runs": f"id in ({broken}) or parent in ({broken})",
            "workers": "session = 'dead'",
            "limits": "place like '%broken%'",
            "limit_settings": "true",
            "budgets": "true",
            "events": "true",
            "lanes": "task = 'child'",
            "queues": "true",
            "schedules": "name like '%broken%'",
            "slots": "schedule = 'broken'",
            "polls": "trigger_name = 'trigger broken'",
            "tallies": "state = 'failed'",
            "watchers": "true",
            "tokens": "true",
            "edges": f"node in (select id from {{}}runs where parent = '{self.runs.active['graph', 'broken']}')",
            "keys": "key = 'broken'",
        }
        return conditions.get(table, f"run in ({broken})")

    def corrupt(self, table: str, column: str, value: str) -> str | None:
        """Set a column of the rows to a SQL expression; return the error if the schema refuses it."""
        try:
            fetch(self.app, f"update {{}}{table} set {column} = {value} where {self.where(table)}")
        except HoldfastError as error:
            return str(error)
        return None

    def make_all_due(self) -> None:
        """Make everything due and expire the dead session."""
        sound = _list(self.runs.of("sound"))
        every = _list(self.runs.active.values())
        fetch(self.app, "update {}workers set lease_until = 1 where session = 'dead'")
        self._try(f"update {{}}runs set due_at = 1 where state = 'scheduled' and due_at > 1 and id in ({every})")
        self._try(f"update {{}}waits set due_at = 1 where due_at > 1 and run in ({sound})")
        fetch(self.app, f"update {{}}runs set deadline = 1 where deadline is not null and id in ({sound})")
        fetch(self.app, f"update {{}}runs set expires_at = 1 where id in ({_list(self.runs.old.values())})")
        fetch(self.app, "update {}schedules set next_at = 1000000 where name = 'sound'")

    def _try(self, sql: str) -> None:
        try:
            fetch(self.app, sql)
        except HoldfastError:
            return

    def go_on(self) -> None:
        """Give every suspended run what it waits for."""
        self.app.emit("go", "gone")
        self.app.get_run(self.runs.active["receiver", "sound"]).send("second", "two")
        self.app.get_run(self.runs.active["graph", "sound"]).gate("ok").complete("yes")

    def slot_created(self) -> bool:
        return fetch(self.app, "select count(*) from {}slots where schedule = 'sound'")[0][0] > 1
