"""Moving one tenant to another database: everything arrives once, others go on, whatever interrupts the move."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from holdfast import Context, Holdfast, MoveRefused, Retry, TenantMoved
from holdfast.control.move import Move
from holdfast.control.tenant_move import TenantMove
from holdfast.database.migrate import table_names
from holdfast.database.statements import StatementSource, render
from holdfast.database.transfer import FENCE, NOT_OF_TENANTS, TENANT_TABLES, TableCopy
from tests.support.ledger import Ledger
from tests.support.moves import DIRECTIONS, Killed, Killer, Opened, fill
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.no_tables
both_ways = pytest.mark.parametrize("urls", DIRECTIONS[:2], indirect=True)
every_way = pytest.mark.parametrize("urls", DIRECTIONS, indirect=True)
first_way_or_slow = pytest.mark.parametrize(
    "urls", [DIRECTIONS[0], pytest.param(DIRECTIONS[1], marks=pytest.mark.slow)], indirect=True
)
SQLITE_TO_SQLITE = pytest.mark.parametrize("urls", DIRECTIONS[2:3], indirect=True)
RENUMBERED = {"runs": ("seq", "lane", "session", "parked_on"), "slots": ("id",)}
"""Columns that have other values in the target."""


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger")


def sql(url, text, **values):
    opened = Opened(url)
    statement = render(StatementSource("test", None, "", text), opened.database.dialect)
    rows = opened.connection.execute(statement, {"now": None, **values})
    opened.close()
    return rows


def fill_tenants(url):
    """Write rows into every table: those with the number 1 belong to `tenant 1`, and so on."""
    fill(url)
    for number in ("1", "2", "3"):
        given = {"number": number, "name": f"name {number}"}
        sql(url, "update {schema}keys set scope = '[\"tenant ' || :number || '\",\"task\"]' where key = :key",
            number=number, key=f"key {number}")  # fmt: skip
        template = '{"tenant":"tenant ' + number + '"}'
        sql(url, "update {schema}schedules set app = '', template = :template where name = :name",
            template=template, name=given["name"])  # fmt: skip
        sql(url, "update {schema}slots set schedule = :name where schedule = :before",
            name=given["name"], before=f"schedule {number}")  # fmt: skip
    return rows_by_tenant(url)


def rows_by_tenant(url):
    """Return by table, then by tenant, the rows without what a move numbers anew."""
    opened = Opened(url)
    found = {}
    for table in TENANT_TABLES:
        copy = opened.copy(table)
        left_out = [copy.column_names.index(name) for name in RENUMBERED.get(table.name, ())]
        found[table.name] = {
            number: sorted(
                str([value for place, value in enumerate(row) if place not in left_out])
                for row in copy.read(opened.connection, None, 1000)
                if {f"tenant {number}", f'["tenant {number}","task"]', f"name {number}", str(UUID(int=number))} & {*row}
            )
            for number in (1, 2, 3)
        }
    opened.close()
    return found


def only(rows, *numbers):
    return {table: {number: found[number] for number in numbers} for table, found in rows.items()}


def move(urls, tenant="acme", **settings):
    moving = TenantMove(*urls, tenant, **settings)
    try:
        return moving.run()
    finally:
        moving.close()


def abort(urls, tenant="acme"):
    moving = TenantMove(*urls, tenant)
    try:
        moving.abort()
    finally:
        moving.close()


def declare(url, ledger=None):
    """Return an app with tasks that write into the ledger."""
    app = Holdfast(url)

    @app.task(name="order")
    async def order(ctx: Context, number: int) -> int:
        await ctx.options(name="note").step(note, f"charged {number}")
        await ctx.wait_for("go")
        await ctx.options(name="note").step(note, f"shipped {number}")
        return number

    async def note(text: str) -> None:
        ledger.write(text)

    @app.task(name="plain")
    def plain(number: int) -> None:
        ledger.write(f"plain {number}")

    return app


def enqueue(app, tenant, numbers, task="plain", **options):
    return [app.remote(task).options(tenant=tenant, **options).enqueue(number) for number in numbers]


def meta_names(url):
    return {name for (name,) in sql(url, "select name from {schema}meta") if "tenant" in name}


def triggers(url):
    """Return how many triggers of fences there are."""
    if url.startswith("sqlite"):
        return sql(url, "select count(*) from sqlite_master where type = 'trigger' and name like '%tenant%'")[0][0]
    return sql(url, "select count(*) from pg_catalog.pg_trigger where tgname like 'tenant%'")[0][0]


class TenantMoveState:
    """How far a move of `tenant 1` is."""

    def __init__(self, urls):
        self._move = TenantMove(*urls, "tenant 1")

    def __enter__(self):
        source, target = self._move._records()
        self.has_begun = source is not None or target is not None
        self.is_marked = self._move._source.moved_to() is not None or (source is not None and source.is_moved)
        return self

    def __exit__(self, *_):
        self._move.close()


def test_every_table_belongs_to_tenants_or_not_for_a_reason(database_url):
    names = {table.name for table in TENANT_TABLES}
    assert names | set(NOT_OF_TENANTS) == set(table_names())
    assert not names & set(NOT_OF_TENANTS)
    opened = Opened(database_url)
    for table in TENANT_TABLES:
        assert {*table.key, *([table.numbered] if table.numbered else [])} <= set(opened.copy(table).column_names)
    opened.close()


@every_way
def test_all_rows_of_the_tenant_arrive_and_those_of_others_stay(urls):
    source, target = urls
    before = fill_tenants(source)
    assert all(len(found[1]) == 1 for found in before.values()), before
    with Holdfast(target) as app:
        enqueue(app, "other", range(3))
    planning = TenantMove(source, target, "tenant 1")
    planned = planning.plan()
    planning.close()
    assert (planned.state, planned.runs) == ("planned", {"waiting": 1})
    report = move(urls, "tenant 1")
    assert (report.state, report.tables) == ("moved", planned.tables)
    assert set(report.tables.values()) == {1}
    assert only(rows_by_tenant(target), 1) == only(before, 1)
    assert not any(found[1] for found in rows_by_tenant(source).values())
    assert only(rows_by_tenant(source), 2, 3) == only(before, 2, 3)
    assert not any(rows for table, found in rows_by_tenant(target).items() for rows in (found[2], found[3]))
    ((lane,),) = sql(target, "select l.task from {schema}runs r join {schema}lanes l on l.id = r.lane"
                             " where r.tenant = 'tenant 1'")  # fmt: skip
    assert lane == "task 1"
    for url in urls:
        assert not [row for row in sql(url, _TABLES[url[:3]]) if "moving" in row[0]]
    assert meta_names(source) == {"tenant_moved:tenant 1", f"{FENCE}tenant 1"}
    assert meta_names(target) == {"tenant_arrived:tenant 1"}
    assert (triggers(source), triggers(target)) == (6, 0)
    assert move(urls, "tenant 1").state == "already moved"


_TABLES = {
    "sql": "select name from sqlite_master where type = 'table'",
    "pos": "select cast(relname as text) from pg_catalog.pg_class where relkind = 'r'",
}


@both_ways
def test_runs_continue_in_the_target_in_their_order_and_the_source_refuses_the_tenant(urls, ledger):
    source, target = urls
    with declare(source, ledger) as app:
        order = app.remote("order")
        orders = [order.options(tenant="acme", key=f"k{number}").enqueue(number) for number in range(3)]
        others = enqueue(app, "other", range(10, 12), "order")
        app.worker().drain(timeout=30)
        plain = enqueue(app, "acme", range(20, 30))
        (late,) = enqueue(app, "acme", [40], delay=3600)
        report = move(urls)
        assert report.runs == {"ready": 10, "scheduled": 1, "waiting": 3}
        for refused in (
            lambda: enqueue(app, "acme", [50]),
            lambda: enqueue(app, "acme", [50], key="new"),
            lambda: app.emit("go", tenant="acme"),
            lambda: app.publish("news", tenant="acme"),
        ):
            with pytest.raises(TenantMoved, match=r"tenant acme was moved to .*; use that URL for this tenant"):
                refused()
        enqueue(app, "other", [51])
        enqueue(app, None, [52])
        app.emit("go", tenant="other")
        app.worker().drain(timeout=30)
        assert [run.info().state for run in others] == ["done"] * 2
    with declare(target, ledger) as app:
        again = app.remote("order").options(tenant="acme", key="k1").enqueue(1)
        assert again.id == orders[1].id
        assert app.get_run(late.id).info().state == "scheduled"
        app.emit("go", tenant="acme")
        app.worker(concurrency=1).drain(timeout=30)
        assert [app.get_run(run.id).result(timeout=1) for run in orders] == [0, 1, 2]
        assert {app.get_run(run.id).info().state for run in plain} == {"done"}
        assert app.get_run(orders[0].id).info().tenant == "acme"
        enqueue(app, "acme", [60])
    lines = ledger.lines()
    assert [line for line in lines if line.startswith("plain 2")] == [f"plain {number}" for number in range(20, 30)]
    assert all(count == 1 for count in ledger.counts().values()), "nothing is executed twice"
    assert sum("shipped" in line for line in lines) == 5


@both_ways
def test_the_move_waits_for_running_code_and_claims_nothing_meanwhile(urls, ledger):
    source, target = urls
    app, release = Holdfast(source), []

    @app.task(name="slow")
    async def slow() -> None:
        ledger.write("began")
        while not release:
            await asyncio.sleep(0.01)
        ledger.write("ended")

    seen = []

    def progress(step):
        if step.stage == "drain" and not seen:
            seen.append(step.running)
            enqueue(app, "acme", [1], "slow-later")  # accepted until nothing runs any more
            release.append(True)

    with app:
        (run,) = [app.remote("slow").options(tenant="acme").enqueue()]
        with app.worker():
            wait_until(ledger.lines)
            report = move(urls, progress=progress)
            assert report.runs == {"done": 1, "ready": 1}
            assert seen == [1]
    assert ledger.lines() == ["began", "ended"]
    with Holdfast(target) as app:
        assert app.get_run(run.id).info().state == "done"


@both_ways
def test_runs_of_a_worker_that_died_are_recovered_by_the_move_if_no_worker_is_left(urls, monkeypatch):
    source, target = urls
    monkeypatch.setattr("holdfast.control.tenant_move.RECOVERY_DELAY_S", 0)
    with declare(source) as app:
        (run,) = enqueue(app, "acme", [1])
        app.store.prepare()
        app.store.sessions.open("dead", "dead", 3_600_000_000, "{}")
        sql(source, "update {schema}runs set state = 'running', session = 'dead', fence = 1, attempt = 1")
        sql(source, "update {schema}workers set lease_until = 1")
        report = move(urls)
        assert report.runs == {"ready": 1}
    with Holdfast(target) as app:
        assert app.get_run(run.id).info().state == "ready"


@first_way_or_slow
def test_a_move_that_is_killed_before_and_after_every_write_continues(urls, monkeypatch):
    """Each call is killed at its first write that changes something: before it, then, in the next call, after it."""
    source, target = urls
    before = fill_tenants(source)
    monkeypatch.setattr("holdfast.control.tenant_move.FIRST_BATCH_ROWS", 2)
    killer, kills = Killer(monkeypatch), 0
    monkeypatch.setattr(TenantMove, "_recover", lambda _self: None)
    at = 1
    while True:
        killer.left, killer.after = at, kills % 2 == 1
        try:
            move(urls, "tenant 1")
        except Killed:
            kills += 1
            at += kills % 2 == 0
        else:
            break
        finally:
            killer.left = None
    assert only(rows_by_tenant(target), 1) == only(before, 1)
    assert only(rows_by_tenant(source), 2, 3) == only(before, 2, 3)
    assert not any(found[1] for found in rows_by_tenant(source).values())
    assert kills >= len(TENANT_TABLES) + 8, "one write per table, and those that begin and end the move"
    with Holdfast(target) as app:
        enqueue(app, "tenant 1", [1])


@first_way_or_slow
def test_a_move_that_is_killed_anywhere_can_be_aborted_until_the_source_is_marked(urls, monkeypatch):
    source, target = urls
    before = fill_tenants(source)
    killer, aborted = Killer(monkeypatch), 0
    for at in range(1, 200, 9):
        killer.left, killer.after = at, at % 2 == 1
        try:
            move(urls, "tenant 1")
        except Killed:
            pass
        else:
            break
        finally:
            killer.left = None
        with TenantMoveState(urls) as state:
            if state.is_marked:
                break
            if state.has_begun:
                abort(urls, "tenant 1")
        aborted += 1
        assert rows_by_tenant(source) == before
        assert not any(any(found.values()) for found in rows_by_tenant(target).values())
        for url in urls:
            assert not meta_names(url)
            assert triggers(url) == 0
        sql(source, "delete from {schema}pauses where kind = 'tenant'")  # being resumed, which no worker does here
    assert aborted > 5
    move(urls, "tenant 1")
    assert only(rows_by_tenant(target), 1) == only(before, 1)


@SQLITE_TO_SQLITE
def test_an_abort_that_is_killed_is_continued_and_no_move_goes_on_meanwhile(urls, monkeypatch):
    before = fill_tenants(urls[0])
    moving = TenantMove(*urls, "tenant 1")
    monkeypatch.setattr(moving, "_verify", lambda _source: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        moving.run()
    record = moving._source.record()
    moving.close()
    killer = Killer(monkeypatch)
    for at in range(1, 30):
        killer.left, killer.after = at, at % 2 == 1
        try:
            abort(urls, "tenant 1")
        except Killed:
            killer.left = None
            frozen = TenantMove(*urls, "tenant 1")
            with pytest.raises(MoveRefused, match="aborted"):
                frozen._source.mark_moved(record.id)
            frozen.close()
        else:
            break
        finally:
            killer.left = None
    assert rows_by_tenant(urls[0]) == before
    with pytest.raises(MoveRefused, match="no move"):
        abort(urls, "tenant 1")


@both_ways
def test_a_tenant_that_was_paused_stays_paused_and_one_that_was_not_runs(urls, ledger):
    source, target = urls
    with declare(source, ledger) as app:
        enqueue(app, "acme", [1])
        app.pause(tenant="acme")
        move(urls)
    with declare(target, ledger) as app:
        app.worker().drain(timeout=10)
        assert not ledger.lines()
        back = (target, source)
        move(back)
    with declare(source, ledger) as app:
        app.worker().drain(timeout=10)
        assert not ledger.lines()
        app.resume(tenant="acme")
        app.worker().drain(timeout=10)
        assert ledger.lines() == ["plain 1"]


@both_ways
def test_a_tenant_can_return_and_an_aborted_return_leaves_it_where_it_is(urls, monkeypatch):
    source, target = urls
    back = target, source
    with Holdfast(source) as app:
        (run,) = enqueue(app, "acme", [1])
        enqueue(app, "other", [1])
    move(urls)
    returning = TenantMove(*back, "acme")
    monkeypatch.setattr(returning, "_verify", lambda _source: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        returning.run()
    returning.close()
    for url in urls:
        with Holdfast(url) as app, pytest.raises(TenantMoved):
            enqueue(app, "acme", [2])
    abort(back)
    with Holdfast(source) as app, pytest.raises(TenantMoved, match="was moved to"):
        enqueue(app, "acme", [2])
    with Holdfast(target) as app:
        enqueue(app, "acme", [2])
    assert move(back).runs == {"ready": 2}
    with Holdfast(source) as app:
        assert app.get_run(run.id).info().state == "ready"
        enqueue(app, "acme", [3])
    with Holdfast(target) as app, pytest.raises(TenantMoved):
        enqueue(app, "acme", [4])
    assert (triggers(source), triggers(target)) == (0, 6)


@both_ways
def test_runs_that_are_parked_on_a_limit_continue_in_the_target(urls, ledger):
    source, target = urls

    def app_of(url):
        app = Holdfast(url)
        app.limit("gpu", concurrency=1)

        @app.task(name="limited", limits=["gpu"])
        def limited(number: int) -> None:
            ledger.write(f"limited {number}")

        return app, limited

    app, limited = app_of(source)
    with app:
        runs = [limited.options(tenant="acme").enqueue(number) for number in range(3)]
        sql(source, "update {schema}runs set held = 'full', parked_on = '[\"gpu\",\"\"]'")
        move(urls)
    app, _ = app_of(target)
    with app:
        app.worker().drain(timeout=30)
        assert {app.get_run(run.id).info().state for run in runs} == {"done"}
    assert sorted(ledger.lines()) == [f"limited {number}" for number in range(3)]


@both_ways
def test_waits_for_limits_and_budgets_are_checked_in_the_target(urls):
    source, target = urls
    fill_tenants(source)
    sql(source, "update {schema}waits set eager = 2, target = 'limit:[\"gpu\",\"a\"]' where key = 'key 1'")
    sql(source, "update {schema}budget_totals set waiting = 1")
    fill_budget = (
        "insert into {schema}budgets (name, per, bound, on_exceeded, declared_at) values (:name, 'run', 1, 'wait', 1)"
    )
    with Holdfast(target) as app:
        app.store.prepare()
    for name in ("name 1", "name 2"):
        sql(target, fill_budget, name=name)
    move(urls, "tenant 1")
    assert sql(target, "select place, name, used, steps from {schema}limits where look_at <= {now}") == [
        ('["gpu","a"]', "gpu", 0, 1)
    ]
    assert sql(target, "select name from {schema}budgets where check_at <= {now}") == [("name 1",)]


@both_ways
def test_in_a_fair_queue_the_tenant_starts_at_the_head_and_keeps_its_order(urls):
    source, target = urls

    def fair(url):
        app = Holdfast(url)
        app.queue("fair", fair=True)

        @app.task(name="work", queue="fair")
        def work(number: int) -> None: ...

        return app, work

    app, work = fair(source)
    with app:
        for number in range(5):
            work.options(tenant="first").enqueue(number)
        moved = [work.options(tenant="acme").enqueue(number) for number in range(3)]
    app, work = fair(target)
    with app:
        for number in range(5):
            work.options(tenant="there").enqueue(number)
        sql(target, "update {schema}runs set turn = turn + 50000000")
        move(urls)
        turns = sql(target, "select r.id, r.turn from {schema}runs r where r.tenant = 'acme' order by r.turn")
        ((head,),) = sql(target, "select min(turn) from {schema}runs where tenant = 'there'")
    assert [str(id) for id, _ in turns] == [str(run.id) for run in moved]
    assert turns[0][1] == head
    assert [turn - head for _, turn in turns] == [0, 1_000_000, 2_000_000]


@both_ways
def test_what_would_be_ambiguous_is_refused(urls, tmp_path):
    source, target = urls
    with Holdfast(source) as app:
        app.store.prepare()
        with pytest.raises(MoveRefused, match="has no data of tenant acme"):
            move(urls)
        enqueue(app, "acme", [1])
        enqueue(app, "other", [1])
    with Holdfast(target) as app:
        enqueue(app, "acme", [2])
    with pytest.raises(MoveRefused, match="has data of tenant acme: a move doesn't merge"):
        move(urls)
    with pytest.raises(MoveRefused, match="the same database"):
        move((source, source))
    with pytest.raises(MoveRefused, match="in-memory"):
        move((source, "sqlite:///:memory:"))
    with pytest.raises(MoveRefused, match="no move of tenant acme"):
        abort(urls)
    for url in urls:
        assert not meta_names(url)
        with Holdfast(url) as app:
            enqueue(app, "acme", [3])
    sql(source, "update {schema}runs set parent = (select id from {schema}runs where tenant = 'other'), spawn_key = 'x'"
                " where tenant = 'acme'")  # fmt: skip
    third = f"sqlite:///{tmp_path}/third.db"
    for tenant in ("acme", "other"):
        with pytest.raises(MoveRefused, match="no tree of runs may be in two databases"):
            move((source, third), tenant)
    with Holdfast(source) as app:
        enqueue(app, "acme", [4])


@SQLITE_TO_SQLITE
def test_a_schedule_with_the_same_name_is_refused_until_it_is_renamed(urls):
    source, target = urls
    for url, tenant in ((source, "acme"), (target, "other")):
        with declare(url) as app:
            app.schedules.create("nightly", app.remote("plain").options(tenant=tenant).request(1), cron="0 3 * * *")
            if url == source:
                app.schedules.create("weekly", app.remote("plain").options(tenant="else").request(1), cron="0 3 * * 0")
    with pytest.raises(MoveRefused, match="a schedule named 'nightly': rename or delete it"):
        move(urls)
    with Holdfast(target) as app:
        app.schedules.delete("nightly")
    assert move(urls).tables["schedules"] == 1
    with Holdfast(target) as app:
        assert [each.name for each in app.schedules.list()] == ["nightly"]
    with Holdfast(source) as app:
        assert [each.name for each in app.schedules.list()] == ["weekly"]


@SQLITE_TO_SQLITE
def test_one_move_at_a_time(urls, tmp_path, monkeypatch):
    source, third = urls[0], f"sqlite:///{tmp_path}/third.db"
    with Holdfast(source) as app:
        enqueue(app, "acme", [1])
        enqueue(app, "other", [1])
    moving = TenantMove(*urls, "acme")
    monkeypatch.setattr(moving, "_verify", lambda _source: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        moving.run()
    with pytest.raises(MoveRefused, match="takes part in another move, of tenant acme"):
        move((source, third))
    with pytest.raises(MoveRefused, match="takes part in another move, of tenant acme"):
        move((source, third), "other")
    whole = Move(source, third)
    with pytest.raises(MoveRefused, match="a tenant is being moved"):
        whole.run()
    whole.close()
    other = TenantMove(*urls, "acme")
    assert other.run().state == "moved"
    other.close()
    monkeypatch.undo()
    with pytest.raises(MoveRefused, match="was aborted by another process"):
        moving._source.mark_moved("other")
    moving.close()


@SQLITE_TO_SQLITE
def test_a_difference_stops_the_move(urls, monkeypatch):
    with Holdfast(urls[0]) as app:
        enqueue(app, "acme", [1])
    real = TableCopy.write

    def changed(self, connection, rows):
        place = self.column_names.index("args") if self.table.name == "moving_runs" else None
        real(self, connection, [tuple("[1]" if i == place else it for i, it in enumerate(row)) for row in rows])

    with monkeypatch.context() as patch:
        patch.setattr(TableCopy, "write", changed)
        with pytest.raises(MoveRefused, match="table moving_runs differs"):
            move(urls)
    abort(urls)
    assert move(urls).runs == {"ready": 1}


@SQLITE_TO_SQLITE
def test_a_target_that_was_restored_is_noticed_before_the_source_forgets_the_rows(urls, monkeypatch):
    with Holdfast(urls[0]) as app:
        enqueue(app, "acme", [1])
    moving = TenantMove(*urls, "acme")
    monkeypatch.setattr(moving._target, "finish", lambda *_: (_ for _ in ()).throw(Killed))
    with pytest.raises(Killed):
        moving.run()
    moving.close()
    sql(urls[1], "delete from {schema}meta where name like 'tenant%'")
    with pytest.raises(MoveRefused, match="doesn't know of the move"):
        move(urls)
    assert sql(urls[0], "select count(*) from {schema}moving_runs") == [(1,)]


@both_ways
def test_a_move_of_everything_keeps_refusing_tenants_that_went_elsewhere(urls, tmp_path):
    elsewhere = f"sqlite:///{tmp_path}/elsewhere.db"
    with Holdfast(urls[0]) as app:
        enqueue(app, "acme", [1])
        enqueue(app, "other", [1])
    move((urls[0], elsewhere))
    whole = Move(*urls)
    whole.run()
    whole.close()
    with Holdfast(urls[1]) as app:
        enqueue(app, "other", [2])
        with pytest.raises(TenantMoved, match="elsewhere"):
            enqueue(app, "acme", [2])


@both_ways
def test_names_that_look_like_sql_are_only_names(urls):
    tenant = """o'neil"; {schema} $$ @open@ :now %s 🦀"""
    with Holdfast(urls[0]) as app:
        enqueue(app, tenant, [1], key="k")
        assert move(urls, tenant).runs == {"ready": 1}
        with pytest.raises(TenantMoved, match="o'neil"):
            enqueue(app, tenant, [2])
    with Holdfast(urls[1]) as app:
        enqueue(app, tenant, [2])
        assert enqueue(app, tenant, [1], key="k")[0].info().state == "ready"


@both_ways
def test_a_run_that_spawns_one_for_a_moved_tenant_fails_alone(urls, ledger):
    with declare(urls[0], ledger) as app:
        enqueue(app, "acme", [1])
        move(urls)

        @app.task(name="parent", retry=Retry(max_attempts=1))
        async def parent(ctx: Context, tenant: str) -> None:
            await ctx.spawn(app.remote("plain").options(tenant=tenant), 7)

        runs = [app.remote("parent").enqueue(tenant) for tenant in ("acme", "other", "other")]
        app.worker().drain(timeout=30)
        assert [run.info().state for run in runs] == ["failed", "done", "done"]
        assert "TenantMoved" in str(runs[0].info().error)
