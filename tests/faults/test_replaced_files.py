"""SQLite: a program stops when its file or WAL is removed or replaced.

Other access to the file in the same process loses no acknowledged writes.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.database.file_guard import FileGuard
from holdfast.database.sqlite import SqliteDatabase
from holdfast.database.sqlite_connection import SqliteConnection
from holdfast.errors import ConfigError, StoreReplaced
from tests.faults.conftest import APPS
from tests.support.ledger import Ledger
from tests.support.processes import Process, Processes
from tests.support.wait_until import wait_until

OPEN_IN_OTHER_PROCESS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("select count(*) from sqlite_schema").fetchall()
connection.close()
"""


@pytest.fixture
def file(sqlite_url: str) -> Path:
    return Path(sqlite_url.removeprefix("sqlite:///"))


@pytest.fixture
def start(sqlite_url: str, processes: Processes, ledger: Ledger) -> Callable[..., Process]:
    def start(role: str, **settings: object) -> Process:
        given = [part for name, value in settings.items() for part in (f"--{name}", value)]
        return processes.start(APPS / "writers.py", sqlite_url, ledger.path, role, *given)

    return start


def acknowledged(ledger: Ledger) -> list[list[str]]:
    return [words for words in ledger.words() if words[0] == "acknowledged" and len(words) == 4]


def open_in_other_process(file: Path) -> None:
    """Open and close the file as a shell does; closing deletes the WAL if no lock is held."""
    subprocess.run([sys.executable, "-c", OPEN_IN_OTHER_PROCESS, str(file)], check=True, timeout=60)


# Removed files


def remove_file(file: Path) -> None:
    file.unlink()


def move_file(file: Path) -> None:
    file.rename(file.with_name("moved.db"))


def remove_log(file: Path) -> None:
    file.with_name(f"{file.name}-wal").unlink()


def replace_file(file: Path) -> None:
    """Replace the file, as restoring a backup does."""
    shutil.copy(file, file.with_name("restored"))
    file.with_name("restored").rename(file)


def replace_log(file: Path) -> None:
    log = file.with_name(f"{file.name}-wal")
    shutil.copy(log, file.with_name("restored-wal"))
    file.with_name("restored-wal").rename(log)


TAKEN = [remove_file, move_file, remove_log, replace_file, replace_log]


@pytest.mark.parametrize("take", TAKEN)
def test_an_enqueuing_program_stops_when_its_file_is_removed(
    start: Callable[..., Process], file: Path, ledger: Ledger, take: Callable[[Path], None]
) -> None:
    program = start("enqueue")
    wait_until(lambda: len(acknowledged(ledger)) >= 20, 60, lambda: program.log)
    take(file)
    taken = time.monotonic()
    assert program.wait() == 1
    assert "StoreReplaced: " in program.log
    assert program.log.count(" ERROR ") == 1
    later = [words for words in acknowledged(ledger) if float(words[3]) > taken]
    assert len(later) <= 1, "one may have been committed before and noted afterwards"


@pytest.mark.parametrize("take", TAKEN)
def test_a_worker_ends_when_its_file_is_removed(
    start: Callable[..., Process], file: Path, ledger: Ledger, take: Callable[[Path], None]
) -> None:
    worker = start("worker", lease=2)
    worker.wait_for("worker started", timeout=60)
    take(file)
    assert worker.wait(60) == 1
    assert "StoreReplaced: " in worker.log
    assert worker.log.count(" ERROR ") == 1, worker.log


def test_a_worker_of_the_command_line_ends_with_an_exit_code(
    processes: Processes, sqlite_url: str, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(f"from holdfast import Holdfast\napp = Holdfast({sqlite_url!r})\n")
    worker = processes.start("-m", "holdfast.cli", "--app", "shop:app", "worker", "--lease", "2s", cwd=tmp_path)
    worker.wait_for("worker started", timeout=60)
    file.unlink()
    assert worker.wait(60) == 2
    assert "was removed while this program had it open" in worker.log


def test_opening_a_connection_never_creates_a_removed_file_again(file: Path) -> None:
    guard = FileGuard(str(file))
    guard.make_file()
    connection = SqliteConnection(str(file), None, None, guard)
    file.unlink()
    with pytest.raises(StoreReplaced, match="was removed while this program had it open"):
        SqliteConnection(str(file), None, None, guard)
    assert not file.exists()
    connection.close()


def test_all_later_calls_fail_too(sqlite_url: str, file: Path) -> None:
    app = Holdfast(sqlite_url)
    task = app.remote("count")
    task.enqueue(1)
    file.rename(file.with_name("moved.db"))
    for _ in range(2):
        with pytest.raises(StoreReplaced, match="was removed while this program had it open"):
            task.enqueue(2)
        with pytest.raises(StoreReplaced), app.transaction():
            pass
    file.with_name("moved.db").rename(file)
    with pytest.raises(StoreReplaced):  # its outcome is unknown
        task.enqueue(3)
    app.close()
    with Holdfast(sqlite_url) as again:  # the write that noticed it may have reached the moved file, the others didn't
        assert len(again.runs()) in (1, 2)


def test_readers_notice_a_removed_file_too(sqlite_url: str, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.database.sqlite_connection.CHECK_INTERVAL_S", 0.0)
    with Holdfast(sqlite_url) as app:
        assert app.runs() == []
        file.unlink()
        with pytest.raises(StoreReplaced):
            app.runs()


def test_moving_a_parent_directory_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.database.file_guard.FULL_CHECK_S", 0.0)
    (tmp_path / "outer" / "inner").mkdir(parents=True)
    with Holdfast(f"sqlite:///{tmp_path}/outer/inner/jobs.db") as app:
        task = app.remote("count")
        task.enqueue(1)
        (tmp_path / "outer").rename(tmp_path / "moved")
        with pytest.raises(StoreReplaced):
            task.enqueue(2)


def test_replacing_the_file_in_the_tick_of_another_change_is_noticed(sqlite_url: str, file: Path) -> None:
    """Changes of a directory within one clock tick leave the same modification time."""
    with Holdfast(sqlite_url) as app:
        task = app.remote("count")
        task.enqueue(1)
        shutil.copy(file, file.with_name("restored"))
        changed = file.parent.stat().st_mtime_ns
        task.enqueue(2)
        file.with_name("restored").rename(file)
        os.utime(file.parent, ns=(changed, changed))
        with pytest.raises(StoreReplaced):
            task.enqueue(3)


def test_a_link_to_another_file_is_noticed(sqlite_url: str, file: Path, tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "jobs.db"
    file.touch()
    link.symlink_to(file)
    with Holdfast(f"sqlite:///{link}") as app:
        task = app.remote("count")
        task.enqueue(1)
        link.unlink()
        link.symlink_to(tmp_path / "other.db")
        with pytest.raises(StoreReplaced):
            task.enqueue(2)


def test_a_wal_that_no_longer_belongs_to_the_file_is_not_checkpointed(sqlite_url: str, file: Path) -> None:
    """Another program may have written to the file through another WAL."""
    app = Holdfast(sqlite_url)
    app.remote("count").enqueue(1)
    file.with_name(f"{file.name}-wal").unlink()
    before = file.read_bytes()
    app.close()
    assert file.read_bytes() == before


def test_a_closed_app_leaves_the_file_to_others(sqlite_url: str, file: Path) -> None:
    app = Holdfast(sqlite_url)
    app.remote("count").enqueue(1)
    app.close()
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("select count(*) from holdfast_runs").fetchall() == [(1,)]
    shutil.copy(file, file.with_name("copy"))
    file.with_name("copy").rename(file)
    assert len(app.runs()) == 1
    app.close()


# Opened by others in the same process


@pytest.mark.parametrize("also", ["read", "copy", "sqlite3"])
def test_acknowledged_commits_survive_other_access_to_the_file_in_the_process(
    start: Callable[..., Process], file: Path, ledger: Ledger, also: str
) -> None:
    program = start("enqueue", also=also)
    for n in range(1, 4):
        wait_until(lambda n=n: len(acknowledged(ledger)) >= 20 * n, 60, lambda: program.log)
        open_in_other_process(file)
    wait_until(lambda: len(acknowledged(ledger)) >= 80, 60, lambda: program.log)
    program.kill()
    told = {words[1] for words in acknowledged(ledger)}
    with closing(sqlite3.connect(file)) as connection:
        kept = {str(id) for (id,) in connection.execute("select id from holdfast_runs")}
    assert len(told) >= 80
    assert told <= kept
    assert ledger.counts()["refused"] >= 80 * (also == "sqlite3") - 1


def test_the_sqlite3_module_is_rejected_under_any_name_of_the_file(
    sqlite_url: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, hard = tmp_path / "link.db", tmp_path / "hard.db"
    link.symlink_to(file)
    monkeypatch.chdir(tmp_path)
    with Holdfast(sqlite_url) as app:
        app.remote("count").enqueue(1)
        hard.hardlink_to(file)
        names = (file, str(file), str(file).encode(), link, hard, file.name, f"file:{file}", f"file://{file}?mode=ro")
        for name in names:
            with pytest.raises(ConfigError, match=r"app\.transaction\(\)"):
                sqlite3.connect(name, uri=True)
        sqlite3.connect(":memory:").close()
        sqlite3.connect(tmp_path / "other.db").close()
        assert isinstance(app.store.database, SqliteDatabase)
    sqlite3.connect(file).close()


def test_opening_a_connection_while_another_thread_closes_the_last_one(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last connection deletes the log when it closes, which must not look like a removed log."""
    guard = FileGuard(str(file))
    guard.make_file()
    connection = SqliteConnection(str(file), None, None, guard)
    checking, check = threading.Event(), guard.check

    def slow_check() -> None:
        if threading.current_thread() is opener:
            checking.set()
            time.sleep(0.3)
        check()

    monkeypatch.setattr(guard, "check", slow_check)
    opener = threading.Thread(target=guard.make_file)
    with guard.open_lock:
        opener.start()
        checking.wait(0.2)
        connection.close()
    opener.join()
    assert guard.failure is None
