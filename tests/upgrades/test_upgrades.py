"""Runs in flight survive an upgrade of code and tables, also while old and new workers work side by side."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.database.migrate import newest_version
from holdfast.errors import RunFailed
from tests.support.history_queries import fetch, states
from tests.support.processes import Processes
from tests.support.wait_until import wait_until
from tests.upgrades import dumps, tasks

pytestmark = pytest.mark.no_tables

HERE = Path(__file__).resolve().parent
RELEASES = sorted(folder.name for folder in HERE.iterdir() if (folder / "sqlite.sql").exists())
TWICE = {"held held", "step held", "undoing undo-two"}
"""What its worker was in the middle of when it was killed."""
LATER = {
    *(f"{mark} after" for mark in ("event", "message", "plain", "child", "child-child", "map", "time", "step")),
    *("ready job", "scheduled job", "graph-b job", "machine finish", "undoing undo-one"),
}
"""What is left to be done."""


@pytest.fixture(params=["sqlite", "postgres"])
def kind(request):
    return request.param


@pytest.fixture(params=RELEASES)
def app(request, kind, tmp_path):
    """An app of today's code on the database of a release."""
    folder = HERE / request.param
    shutil.copy(folder / f"{kind}.ledger", tmp_path / "ledger")
    text = (folder / f"{kind}.sql").read_text()
    if kind == "sqlite":
        dumps.load_sqlite(text, tmp_path / "jobs.db")
        url = f"sqlite:///{tmp_path / 'jobs.db'}"
    else:
        url = request.getfixturevalue("postgres_url")
        dumps.load_postgres(text, url)
    with closing(tasks.make_app(url, tmp_path / "ledger")) as app:
        yield app


def run_of(app, mark):
    """By the first of its arguments; the graph has none."""
    for info in app.runs(limit=100):
        if info.parent is None and (info.task == mark or (info.task != "graph" and argument(app, info.id) == mark)):
            return app.get_run(info.id)
    raise AssertionError(f"no run {mark}")


def argument(app, id):
    rows = fetch(app, f"select args from {{}}runs where id = '{id}'")
    return rows[0][0].split('"mark":"')[1].split('"')[0]


def test_runs_of_a_release_go_on_where_they_were_under_todays_code(app, tmp_path):
    before = Counter(tasks.ledger.counts())
    marks = ["event", "message", "plain", "child", "map", "time", "step", "held", "undoing", "ready", "machine"]
    runs = {mark: run_of(app, mark) for mark in marks}
    (tmp_path / "release").touch()
    with app.worker(lease=5):
        for mark in ("event", "child-child"):
            app.emit(f"go {mark}", "gone")
        for mark in ("message", "plain"):
            runs[mark].send("note", "sent")
        run_of(app, "graph").gate("ok").complete("yes")
        results = {mark: runs[mark].result(timeout=60) for mark in marks if mark != "undoing"}
        with pytest.raises(RunFailed, match="enough"):
            runs["undoing"].result(timeout=60)
        wait_until(lambda: set(states(app)) <= {"done", "failed", "skipped"})
    assert results == {
        "event": "gone", "message": "sent", "plain": "sent", "child": "gone", "map": ["job", "job"], "time": None,
        "step": "held", "held": "held", "ready": "job", "machine": "finish",
    }  # fmt: skip
    assert Counter(tasks.ledger.counts()) - before == Counter(TWICE) + Counter(LATER)
    assert dict(fetch(app, "select name, value from {}meta"))["schema"] == str(newest_version())
    assert app.registry.get("job").options(key="ready").enqueue("ready").id == runs["ready"].id, "its key was forgotten"


def test_every_release_has_its_databases():
    assert "0.1.0" in RELEASES
    for release in RELEASES:
        assert {path.name for path in (HERE / release).iterdir()} == {
            "sqlite.sql", "sqlite.ledger", "postgres.sql", "postgres.ledger",
        }  # fmt: skip


def test_old_and_new_workers_work_side_by_side_while_the_tables_change(database_url, tmp_path):
    """The new one brings a migration; the old one goes on, and another old one starts on the new tables."""
    with closing(tasks.make_app(database_url, tmp_path / "ledger")) as app, closing(Processes(tmp_path)) as processes:
        who = app.registry.get("who")
        old = processes.start(HERE / "tasks.py", database_url, tmp_path / "ledger")
        runs = [who.enqueue(f"a{n}") for n in range(30)]
        wait_until(lambda: len(tasks.ledger.lines()) > 10)
        new = processes.start(HERE / "tasks.py", database_url, tmp_path / "ledger", "next")
        new.wait_for("worker started")
        assert dict(fetch(app, "select name, value from {}meta"))["schema"] == str(newest_version() + 1)
        late = processes.start(HERE / "tasks.py", database_url, tmp_path / "ledger")
        late.wait_for("worker started")

        def all_have_had_some():
            runs.extend([who.enqueue(f"b{len(runs) + n}") for n in range(20)])
            return {run.result(timeout=60) for run in runs} == {old.pid, new.pid, late.pid}

        wait_until(all_have_had_some, 60)
        assert all(process.alive and "Traceback" not in process.log for process in (old, new, late))
        assert states(app) == {"done": len(runs)}
        assert set(tasks.ledger.counts().values()) == {1}
        assert len(tasks.ledger.lines()) == 2 * len(runs)
