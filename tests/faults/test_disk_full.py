"""A full disk raises a typed error, leaves no partial writes, and work resumes when there is space again."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from holdfast.errors import StoreUnavailable
from holdfast.testing.server import PostgresServer
from tests.support.disk import Disk
from tests.support.history_queries import ended_once, fetch, states
from tests.support.wait_until import wait_until

BATCH = 500
MOST_BATCHES = 400


@pytest.fixture
def make_disk(tmp_path_factory):
    made = []

    def make(megabytes):
        parent = tmp_path_factory.mktemp("small")
        for folder in (parent, *parent.parents[:3]):
            if folder.stat().st_mode & 0o777 == 0o700:
                folder.chmod(0o755)  # the user of the PostgreSQL server needs access
        made.append(Disk(parent / "disk", megabytes))
        if made[-1].missing is not None:
            pytest.skip(made[-1].missing)
        return made[-1]

    yield make
    for disk in made:
        disk.close()


def fill_and_enqueue(disk, app):
    """Enqueue until an error occurs; return the number of acknowledged runs and the error."""
    assert disk.fill()
    for number in range(MOST_BATCHES):
        try:
            app.remote("count").enqueue_many([(1000 + number * BATCH + n,) for n in range(BATCH)])
        except StoreUnavailable as refused:
            return number * BATCH, str(refused)
    raise AssertionError("there was room all the while")


def test_a_full_disk_under_sqlite_is_a_typed_error_and_work_resumes(make_disk, connect, start_worker, ledger):
    disk = make_disk(64)
    url = f"sqlite:///{disk.folder / 'jobs.db'}"
    app = connect(url)
    worker = start_worker(url, lease=5)
    app.remote("count").enqueue_many([(n,) for n in range(50)])
    wait_until(lambda: states(app) == {"done": 50})
    acknowledged, refusal = fill_and_enqueue(disk, app)
    assert "check free disk space" in refusal
    assert worker.alive
    disk.clear()
    app.remote("count").enqueue(999_999)
    wait_until(lambda: states(app) == {"done": 51 + acknowledged}, 120)
    assert ended_once(app)
    assert len({words[0] for words in ledger.words()}) == 51 + acknowledged
    assert fetch(app, "pragma integrity_check") == [("ok",)]
    assert "Traceback" not in worker.log


def test_a_full_disk_under_postgres_is_a_typed_error_and_work_resumes(make_disk, connect, start_worker, ledger):
    disk = make_disk(256)
    settings = {"min_wal_size": "32MB", "max_wal_size": "64MB"}
    with PostgresServer(disk.folder / "data", settings=settings) as server:
        url = server.create_database()
        app = connect(url)
        worker = start_worker(url, lease=5)
        app.remote("count").enqueue_many([(n,) for n in range(50)])
        wait_until(lambda: states(app) == {"done": 50})
        acknowledged, _ = fill_and_enqueue(disk, app)
        assert worker.alive
        disk.clear()
        server.start()  # without space for its WAL, the server has stopped
        with Holdfast(url) as other:
            other.remote("count").enqueue(999_999)
            wait_until(lambda: states(other) == {"done": 51 + acknowledged}, 120)
            assert ended_once(other)
        assert len({words[0] for words in ledger.words()}) == 51 + acknowledged
        assert "Traceback" not in worker.log
