"""Backups of SQLite databases that are in use, and what a restore does to the runs in them."""

from __future__ import annotations

import threading

import pytest

from holdfast import Context, Holdfast, Retry
from holdfast.control.backup import backup, restore
from holdfast.database import sqlite_backup
from holdfast.errors import ConfigError, StoreError
from tests.support.ledger import Ledger
from tests.support.wait_until import wait_until

pytestmark = pytest.mark.no_tables


@pytest.fixture
def ledger(tmp_path):
    return Ledger(tmp_path / "ledger")


def declare(url, ledger):
    app = Holdfast(url)

    async def note(text: str) -> None:
        ledger.write(text)

    @app.task(name="order", retry=Retry(max_attempts=1))
    async def order(ctx: Context, number: int) -> int:
        await ctx.options(name="note").step(note, f"charged {number}")
        await ctx.wait_for("go")
        await ctx.options(name="note").step(note, f"shipped {number}")
        return number

    return app


def test_a_backup_of_a_busy_database_is_of_one_moment_and_its_runs_continue_after_a_restore(tmp_path, ledger):
    url, file = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "copy.db"
    written = threading.Event()

    def write_more(_done, _total):
        if not written.is_set():  # behind the snapshot that is being copied
            app.remote("order").enqueue_many([(n,) for n in range(100, 400)])
            written.set()

    with declare(url, ledger) as app:
        run = app.remote("order").enqueue(1)
        with app.worker(grace=0):
            wait_until(lambda: run.info().state == "waiting")
            report = backup(url, file, write_more)
            assert written.is_set()
            assert report.unfinished == {"waiting": 1}
            app.emit("go")
            assert run.result(timeout=30) == 1
    assert not list(tmp_path.glob("copy.db?*")), "the copy is one file"
    other = f"sqlite:///{tmp_path}/restored.db"
    restored = restore(file, other)
    assert restored.unfinished == {"waiting": 1}
    with declare(other, ledger) as app:
        assert app.get_run(run.id).info().state == "waiting"
        app.emit("go")
        app.worker().drain(timeout=30)
        assert app.get_run(run.id).result(timeout=30) == 1
        assert len(list(app.runs())) == 1
    assert ledger.lines().count("charged 1") == 1, "it was recorded before the backup"
    assert ledger.lines().count("shipped 1") == 2, "it was recorded after the backup, so it was done again"


def test_running_runs_of_a_backup_are_recovered_without_a_charge_and_queues_can_be_paused(tmp_path, ledger):
    url, file = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "copy.db"
    release = threading.Event()
    with Holdfast(url) as app:

        @app.task(name="held")
        def held() -> None:
            release.wait(60)

        run = held.enqueue()
        with app.worker(lease=3600):
            wait_until(lambda: run.info().state == "running")
            assert backup(url, file).unfinished == {"running": 1}
            release.set()
    other = f"sqlite:///{tmp_path}/restored.db"
    restore(file, other, paused=True)
    with Holdfast(other) as app:

        @app.task(name="held")
        def done() -> None: ...

        with app.worker():
            wait_until(lambda: app.get_run(run.id).info().state == "ready")
            assert app.get_run(run.id).info().crashes == 0
            app.resume(queue="default")
            app.get_run(run.id).result(timeout=30)


def test_files_that_exist_or_are_missing_or_damaged_are_refused(tmp_path):
    url, file = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "copy.db"
    with Holdfast(url) as app:
        app.remote("any").enqueue_many([(n,) for n in range(500)])
        backup(url, file)
    with pytest.raises(ConfigError, match="exists"):
        backup(url, file)
    with pytest.raises(ConfigError, match="exists"):
        restore(file, url)
    with pytest.raises(ConfigError, match="does not exist"):
        backup(f"sqlite:///{tmp_path}/none.db", tmp_path / "other.db")
    with pytest.raises(ConfigError, match="does not exist"):
        backup(url, tmp_path / "no" / "other.db")
    with pytest.raises(ConfigError, match="SQLite files"):
        backup("postgresql://host/shop", tmp_path / "other.db")
    (tmp_path / "new.db-wal").touch()
    with pytest.raises(ConfigError, match="belongs to another database"):
        restore(file, f"sqlite:///{tmp_path}/new.db")
    (tmp_path / "text.db").write_text("not a database" * 100)
    with pytest.raises(StoreError, match="isn't a backup"):
        restore(tmp_path / "text.db", f"sqlite:///{tmp_path}/newer.db")
    content = bytearray(file.read_bytes())
    content[8192:12288] = b"\xff" * 4096
    (tmp_path / "damaged.db").write_bytes(content)
    with pytest.raises(StoreError):
        restore(tmp_path / "damaged.db", f"sqlite:///{tmp_path}/newer.db")
    assert not list(tmp_path.glob("newer.db*"))


def test_an_interrupted_backup_leaves_nothing_and_can_be_repeated(tmp_path, monkeypatch):
    url, file = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "copy.db"
    with Holdfast(url) as app:
        app.remote("any").enqueue()
    monkeypatch.setattr(sqlite_backup, "PAGES_PER_STEP", 1)

    def interrupt(done, total):
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backup(url, file, interrupt)
    assert not list(tmp_path.glob("copy.db*"))
    (tmp_path / "copy.db.part").write_text("of a process that was killed")
    assert backup(url, file).unfinished == {"ready": 1}
