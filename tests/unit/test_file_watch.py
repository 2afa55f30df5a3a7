"""The kernel reports writes to a watched file, until it is deleted."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import closing

import pytest

from holdfast.database import file_watch, sqlite
from holdfast.database.file_watch import open_watch
from holdfast.database.sqlite import SqliteDatabase

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify exists only on Linux")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    return path


@pytest.fixture
def watch(file):
    with closing(open_watch(str(file))) as watch:
        yield watch


def test_a_write_is_reported_once(watch, file):
    assert not watch.wait(0)
    file.write_text("x")
    assert watch.wait(60)
    watch.drain()
    assert not watch.wait(0)


def test_a_write_between_drain_and_wait_is_reported(watch, file):
    watch.drain()
    file.write_text("x")
    assert watch.wait(60)


def test_an_interrupt_ends_the_wait(watch):
    waiting = threading.Thread(target=watch.wait, args=(3600,))
    waiting.start()
    watch.interrupt()
    waiting.join(60)
    assert not waiting.is_alive()


def test_a_file_that_was_deleted_and_created_again_is_watched_again(watch, file):
    file.unlink()
    assert watch.wait(60)
    watch.drain()
    assert not watch.is_watching()
    file.write_text("")
    assert watch.is_watching()
    file.write_text("x")
    assert watch.wait(60)


def test_there_is_no_watch_of_a_missing_file_or_without_inotify(tmp_path, file, monkeypatch):
    assert open_watch(str(tmp_path / "missing")) is None
    monkeypatch.setattr(file_watch.sys, "platform", "darwin")
    assert open_watch(str(file)) is None


def test_a_commit_of_another_process_is_noticed_without_polling(tmp_path, monkeypatch):
    monkeypatch.setattr(sqlite, "WATCHED_POLL_INTERVAL_S", 3600.0)
    path, stop = str(tmp_path / "shared.db"), threading.Event()
    with closing(SqliteDatabase(path)) as database, closing(database.change_listener()) as listener:
        while listener.wait(0.1, stop):
            pass
        program = f"""
from holdfast.database.sqlite import SqliteDatabase
from holdfast.database.statements import Statement
statement = Statement("write", "create table t (n)", ())
SqliteDatabase({path!r}).connection("commit").run(lambda connection: connection.execute(statement, {{}}))
"""
        process = subprocess.Popen([sys.executable, "-c", program])
        assert listener.wait(60, stop)
        assert process.wait(60) == 0
