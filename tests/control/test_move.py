"""Moving all data to another database: everything arrives once, whatever interrupts the move."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from holdfast import Context, Holdfast, MoveRefused, StoreMoved
from holdfast.control.move import Move, describe
from holdfast.database import DataFault
from holdfast.database.migrate import table_names
from holdfast.database.transfer import COPIED, NOT_COPIED, TableCopy, check_tables
from tests.support.ledger import Ledger
from tests.support.moves import DIRECTIONS, Killed, Killer, Opened, fill, rows_of
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.no_tables


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger")


both_ways = pytest.mark.parametrize("urls", DIRECTIONS[:2], indirect=True)
every_way = pytest.mark.parametrize("urls", DIRECTIONS, indirect=True)


def compare(source, target):
    for name, rows in source.items():
        if name != "workers":  # their leases have expired
            assert target[name] == rows, name
        assert len(target[name]) == len(rows), name


def test_every_table_of_the_schema_is_moved_or_left_out_for_a_reason(database_url):
    check_tables()
    assert {table.name for table in COPIED} | set(NOT_COPIED) == set(table_names())
    assert not {table.name for table in COPIED} & set(NOT_COPIED)
    opened = Opened(database_url)
    for table in COPIED:
        copy = opened.copy(table)
        assert set(table.key) <= set(copy.column_names)
        assert primary_key(opened, table.name) == list(table.key) or table.name == "runs"
    opened.close()


def primary_key(opened, name):
    from holdfast.database.statements import StatementSource, render

    if opened.database.dialect.name == "sqlite":
        text = "select name from pragma_table_info('holdfast_" + name + "') where pk > 0 order by pk"
    else:
        text = (
            "select cast(a.attname as text) from pg_catalog.pg_index i join pg_catalog.pg_attribute a"
            " on a.attrelid = i.indrelid and a.attnum = any(i.indkey) where i.indrelid = to_regclass('{schema}" + name +
            "') and i.indisprimary order by array_position(cast(i.indkey as smallint[]), a.attnum)"
        )  # fmt: skip
    statement = render(StatementSource("key", None, "", text), opened.database.dialect)
    return [row[0] for row in opened.connection.execute(statement, {})]


@every_way
def test_all_rows_of_all_tables_arrive_unchanged_and_new_ones_are_numbered_behind_them(urls):
    source, target = urls
    before = fill(source)
    assert all(before.values())
    move = Move(source, target)
    assert move.plan().state == "planned"
    report = move.run()
    assert report.tables == {name: len(rows) for name, rows in before.items()}
    assert report.runs == {"waiting": 3}
    assert describe(report) == "3 runs (0 in flight), 105 rows in 35 tables"
    assert move.run().state == "already moved"
    move.close()
    compare(before, rows_of(target))
    compare(before, rows_of(source))
    with Holdfast(target) as app:
        app.remote("new task").enqueue()
        (lane,) = [row for row in Opened(target).rows()["lanes"] if "new task" in row]
        assert 4 in lane, "the numbers of lanes that were retired aren't used again"


@both_ways
def test_the_source_refuses_writes_and_the_target_too_until_it_is_complete(urls):
    source, target = urls
    fill(source)
    refused = []

    def progress(seen):
        if seen.stage in ("copy", "verify", "wait") and len(refused) < 3:
            for url in urls:
                with Holdfast(url) as app, pytest.raises(StoreMoved, match="moved") as caught:
                    app.remote("any").enqueue()
                refused.append(str(caught.value))

    Move(source, target, progress=progress).run()
    assert "was moved to" in refused[0]
    assert "is being moved here" in refused[1]
    with Holdfast(source) as app:
        with pytest.raises(StoreMoved):
            app.worker().drain(timeout=10)
        assert app.get_run(str(UUID(int=1))).info().state == "waiting", "it can still be read"
    with Holdfast(target) as app:
        app.remote("any").enqueue()


@pytest.mark.parametrize("urls", [DIRECTIONS[0], pytest.param(DIRECTIONS[1], marks=pytest.mark.slow)], indirect=True)
def test_a_move_that_is_killed_before_and_after_every_write_continues(urls, monkeypatch):
    """Each call is killed at its first write that changes something: before it, then, in the next call, after it."""
    source, target = urls
    before = fill(source, rows=2)
    monkeypatch.setattr("holdfast.control.move.FIRST_BATCH_ROWS", 2)
    monkeypatch.setattr(TableCopy, "count", lambda _self, _connection: 2)  # which commits, but writes nothing
    killer = Killer(monkeypatch)
    kills = 0
    while True:
        killer.left, killer.after = 1, kills % 2 == 1
        move = Move(source, target)
        try:
            move.run()
        except Killed:
            kills += 1
        else:
            break
        finally:
            killer.left = None
            move.close()
    compare(before, rows_of(target))
    assert kills >= 2 * (len(COPIED) + 4), "one write per table, and those that begin and end the move"
    with Holdfast(target) as app:
        app.remote("any").enqueue()


@both_ways
def test_runs_in_flight_continue_in_the_target_without_a_repeated_or_lost_effect(urls, ledger):
    source, target = urls

    def declare(url):
        app = Holdfast(url)

        @app.task(name="order")
        async def order(ctx: Context, number: int) -> int:
            await ctx.options(name="note").step(note, f"charged {number}")
            if number % 2:
                await ctx.wait_for("go")
            else:
                await in_flight(number)
            await ctx.options(name="note").step(note, f"shipped {number}")
            return number

        async def note(text: str) -> None:
            ledger.write(text)

        async def in_flight(number: int) -> None:
            ledger.write(f"began {number}")
            await asyncio.sleep(0 if url == target else 600)

        return app

    with declare(source) as app:
        runs = app.remote("order").enqueue_many([(number,) for number in range(4)])
        worker = app.worker(lease=1, grace=0)
        with worker:
            wait_until(lambda: sum("began" in line for line in ledger.lines()) == 2)
            wait_until(lambda: sum(run.info().state == "waiting" for run in runs) == 2)
            report = Move(source, target).run()
            assert report.runs == {"running": 2, "waiting": 2}
            assert report.live_workers == 1
            wait_until(lambda: not worker._components.runner.busy_slots)
            assert isinstance(app.store.database.failure, StoreMoved)
    with declare(target) as app:
        app.emit("go")
        with app.worker():
            assert [app.get_run(run.id).result(timeout=60) for run in runs] == [0, 1, 2, 3]
        assert app.get_run(runs[0].id).info().crashes == 0
    effects = [line for line in ledger.lines() if not line.startswith("began")]
    assert sorted(effects) == sorted(f"{what} {number}" for what in ("charged", "shipped") for number in range(4))


def test_the_target_waits_until_the_leases_of_the_source_have_expired(tmp_path, monkeypatch):
    source, target = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    with Holdfast(source) as app:
        app.store.prepare()
        app.store.sessions.open("s", "s", 3_600_000_000, "{}")
    move = Move(source, target)
    assert 3000 < move._source.lease_seconds_left() <= 3600
    left, waited = [30.0, 0.1, 0.0], []
    monkeypatch.setattr(move._source, "lease_seconds_left", lambda: left.pop(0))
    monkeypatch.setattr("holdfast.control.move.time.sleep", lambda _seconds: None)

    def progress(seen):
        if seen.stage == "wait":
            waited.append(seen.seconds_left)
            with Holdfast(target) as app, pytest.raises(StoreMoved):
                app.remote("any").enqueue()

    move._progress = progress
    move.run()
    assert waited == [30.0, 0.1]
    with Holdfast(target) as app:
        app.remote("any").enqueue()


@both_ways
def test_an_aborted_move_leaves_the_source_as_it_was_and_the_target_empty(urls, monkeypatch):
    source, target = urls
    before = fill(source)
    killer = Killer(monkeypatch)
    killer.left, killer.after = 20, True
    with pytest.raises(Killed):
        Move(source, target).run()
    killer.left = None
    with pytest.raises(MoveRefused, match="is being moved"):
        Move(source, f"{target}2" if "sqlite" in target else f"sqlite:///{source[10:]}2").run()
    Move(source, target).abort()
    compare(before, rows_of(source))
    assert not any(rows_of(target).values())
    with pytest.raises(MoveRefused, match="no move"):
        Move(source, target).abort()
    with Holdfast(source) as app:
        app.remote("any").enqueue()
    Move(source, target).run()
    with pytest.raises(MoveRefused, match="is finished"):
        Move(source, target).abort()
    fill_again = Move(target, f"sqlite:///{(source + target).split('sqlite:///')[1].split('.db')[0]}-third.db")
    assert fill_again.run().state == "moved", "what was moved may be moved on"


def test_a_target_with_data_the_same_database_and_memory_are_refused(tmp_path):
    source, target = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    for url in (source, target):
        with Holdfast(url) as app:
            app.remote("any").enqueue()
    with pytest.raises(MoveRefused, match=r"isn't empty: its table lanes"):
        Move(source, target).plan()
    with pytest.raises(MoveRefused, match="isn't empty"):
        Move(source, target).run()
    with pytest.raises(MoveRefused, match="the same database"):
        Move(source, source).run()
    with pytest.raises(MoveRefused, match="in-memory"):
        Move("sqlite:///:memory:", target)
    for url in (source, target):
        with Holdfast(url) as app:
            app.remote("any").enqueue()


def test_a_dry_run_creates_nothing(tmp_path):
    source = f"sqlite:///{tmp_path}/a.db"
    with Holdfast(source) as app:
        app.remote("any").enqueue()
    report = Move(source, f"sqlite:///{tmp_path}/b.db").plan()
    assert (report.state, report.runs, report.tables["runs"]) == ("planned", {"ready": 1}, 1)
    assert not (tmp_path / "b.db").exists()


def test_a_row_that_postgresql_cannot_store_is_named_and_the_move_can_be_aborted(tmp_path, postgres_url):
    source = f"sqlite:///{tmp_path}/a.db"
    with Holdfast(source) as app:
        run = app.remote("any").enqueue()
        with app.transaction() as connection:
            connection.execute("update holdfast_runs set priority = 'high'")
    move = Move(source, postgres_url)
    with pytest.raises(DataFault, match=rf"runs \({run.id}\): column priority .* 'high'"):
        move.run()
    move.abort()
    with Holdfast(source) as app:
        app.remote("any").enqueue()


def test_a_difference_between_source_and_target_stops_the_move(tmp_path, monkeypatch):
    source, target = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    fill(source)
    real = TableCopy.write

    def changed(self, connection, rows):
        place = self.column_names.index("args") if self.table.name == "runs" else None
        altered = [tuple("[1]" if i == place else value for i, value in enumerate(row)) for row in rows]
        real(self, connection, altered)

    monkeypatch.setattr(TableCopy, "write", changed)
    with pytest.raises(MoveRefused, match="table runs differs"):
        Move(source, target).run()
    with Holdfast(target) as app, pytest.raises(StoreMoved):
        app.remote("any").enqueue()


def test_only_one_process_moves_a_database(tmp_path):
    source, target = f"sqlite:///{tmp_path}/a.db", f"sqlite:///{tmp_path}/b.db"
    fill(source)
    others = []

    def progress(seen):
        if seen.stage == "copy" and not others:
            others.append(Move(source, target).run())

    with pytest.raises(MoveRefused, match="another process"):
        Move(source, target, progress=progress).run()
    assert others[0].state == "moved"


class Frozen(Exception):
    """The process of a move stands still here; the test continues it later."""


def move_until(urls, monkeypatch, step):
    """Return a move that has stopped before this step."""
    move = Move(*urls)
    with monkeypatch.context() as patch:

        def freeze(*_):
            raise Frozen

        patch.setattr(move, step, freeze)
        with pytest.raises(Frozen):
            move.run()
    return move


@both_ways
def test_a_frozen_move_that_continues_after_it_was_aborted_changes_nothing(urls, monkeypatch):
    fill(urls[0])
    frozen = move_until(urls, monkeypatch, "_go_live")
    record = frozen._target.read_record()
    other = Move(*urls)
    other.abort()
    with pytest.raises(MoveRefused, match="aborted"):
        frozen._go_live(record)
    frozen.close()
    assert other._source.read_record() is None
    assert other._target.read_record() is None
    assert other.run().state == "moved"
    other.close()
    compare(rows_of(urls[0]), rows_of(urls[1]))


@both_ways
def test_a_frozen_move_does_not_finish_the_next_one_of_its_source(urls, monkeypatch, tmp_path):
    fill(urls[0])
    frozen = move_until(urls, monkeypatch, "_go_live")
    record = frozen._target.read_record()
    aborting = Move(*urls)
    aborting.abort()
    elsewhere = move_until((urls[0], f"sqlite:///{tmp_path}/third.db"), monkeypatch, "_verify")
    with pytest.raises(MoveRefused, match="aborted"):
        frozen._go_live(record)
    assert not elsewhere._source.read_record().is_moved
    for each in (frozen, aborting, elsewhere):
        each.close()


@both_ways
def test_an_abort_does_not_empty_a_target_that_went_live_meanwhile(urls, monkeypatch):
    before = fill(urls[0])
    move = move_until(urls, monkeypatch, "_go_live")
    record = move._target.read_record()
    late = Move(*urls)
    real = late._source.begin_abort

    def finish_first(id):
        move._go_live(record)
        real(id)

    monkeypatch.setattr(late._source, "begin_abort", finish_first)
    with pytest.raises(MoveRefused, match="finished"):
        late.abort()
    late.close()
    move.close()
    compare(before, rows_of(urls[1]))


@both_ways
def test_an_abort_that_was_killed_is_continued_and_no_move_goes_on_meanwhile(urls, monkeypatch):
    before = fill(urls[0])
    move = move_until(urls, monkeypatch, "_go_live")
    record = move._target.read_record()
    killed = Move(*urls)
    monkeypatch.setattr(killed._target, "clear", lambda _key: (_ for _ in ()).throw(Frozen))
    with pytest.raises(Frozen):
        killed.abort()
    with pytest.raises(MoveRefused, match="aborted"):
        move._go_live(record)
    with pytest.raises(MoveRefused, match="--abort"):
        move.run()
    move.abort()
    for each in (move, killed):
        each.close()
    compare(before, rows_of(urls[0]))


@both_ways
def test_a_restored_source_of_a_finished_move_is_neither_moved_again_nor_aborted(urls):
    before = fill(urls[0])
    move = Move(*urls)
    move.run()
    move._source.end_fence(move._source.read_record().id)  # as in a backup from before the move
    with pytest.raises(MoveRefused, match="already has"):
        move.run()
    with pytest.raises(MoveRefused, match="finished"):
        move.abort()
    assert move._source.read_record() is None
    move.close()
    compare(before, rows_of(urls[1]))
