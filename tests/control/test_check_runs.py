"""Which runs a check replays, and how it handles runs that change meanwhile."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from holdfast import Context, Graph, Holdfast
from holdfast.control import Control
from holdfast.errors import ConfigError, UnknownTask
from tests.support.durable import drain
from tests.support.ledger import Ledger
from tests.support.replay_versions import (
    Deployed,
    Effects,
    act,
    act_child,
    begin,
    found,
    walk,
    walk_to_dusk,
    walk_without_second,
)
from tests.support.wait_until import wait_until


@pytest.fixture(autouse=True)
def ledger(tmp_path: Path) -> Ledger:
    Effects.ledger = Ledger(tmp_path / "ledger")
    return Effects.ledger


def test_only_unfinished_runs_that_have_begun_are_replayed_and_jobs_are_not(database_url):
    ended = begin(database_url, walk)
    with Deployed(database_url, walk) as old:
        old.app.emit("dawn")
        drain(old.app)
        assert old.app.get_run(ended).info().state == "done"
    waits = begin(database_url, walk_to_dusk)
    with Deployed(database_url, walk_without_second) as new:
        new.walk.enqueue()  # hasn't begun
        new.child.options(delay=60).enqueue(1)
        report = new.check()
    assert report.checked == 1
    assert [run.id for run in report.different] == [waits]


def test_runs_of_tasks_that_no_app_declares_cannot_continue(database_url):
    begin(database_url, walk)
    begin(database_url, walk)
    with Deployed(database_url, None) as new:
        new.app.remote("job.renamed").enqueue(1)  # hasn't begun
        new.child.enqueue(1)
        graph = Graph("only-nodes-have-code")
        graph.add(new.child, 1, name="node")
        new.app.submit(graph)
        report = new.check()
        assert (report.checked, report.different, report.severity) == (0, [], "blocked")
        assert (report.unknown, report.elsewhere) == ({"job.renamed": 1, "walk": 2}, {})
        report = new.check(ignore=["job.*", "wal?"])
        assert (report.unknown, report.elsewhere) == ({}, {"job.renamed": 1, "walk": 2})
        assert report.severity is None
        assert new.check(task="child").unknown == {}


def test_tasks_of_other_apps_are_known_by_their_workers(database_url):
    with Deployed(database_url, walk, "stroll") as this, Holdfast(database_url) as other:
        other.task(name="bill")(act_child)
        this.app.remote("bill").options(delay=60).enqueue(1)
        this.app.remote("walk").options(delay=60).enqueue()
        with other.worker(), Deployed(database_url, walk) as before, before.app.worker():
            report = this.check()
        assert (report.unknown, report.elsewhere) == ({"walk": 1}, {"bill": 1}), "the previous release has child, too"
        assert this.check().unknown == {"bill": 1, "walk": 1}


def test_check_accepts_limit_and_reports_progress(database_url):
    ids = [begin(database_url, walk) for _ in range(3)]
    told: list[tuple[int, int]] = []
    with Deployed(database_url, walk_without_second) as new:
        report = new.check(limit=2, progress=lambda *far: told.append(far))
        assert new.check(task="child").checked == 0
        assert new.check(task="walk").checked == 3
        with pytest.raises(UnknownTask, match="did you mean walk"):
            new.check(task="wlak")
        with pytest.raises(ConfigError):
            new.check(timeout=-1)
    assert [run.id for run in report.different] == ids[:2], "the oldest"
    assert told == [(1, 2), (2, 2)]


def test_an_alias_finds_the_runs_of_a_renamed_task(database_url):
    begin(database_url, walk)
    with Holdfast(database_url) as app:
        app.task(name="stroll", aliases=("walk",))(walk)
        report = Control(app.store, app.registry).check.run()
    assert (report.checked, report.same) == (1, 1)


def test_run_that_changes_meanwhile_is_not_a_difference(database_url):
    let_go = threading.Event()

    def hold(_what: int) -> None:
        Effects.ledger.write("held")
        let_go.wait(60)

    async def working(ctx: Context) -> None:
        await ctx.step(act, 1, name="first")
        await ctx.step(hold, 2, name="hold")

    with Deployed(database_url, working) as old, old.app.worker():
        run = old.walk.enqueue()
        wait_until(lambda: "held" in Effects.ledger.lines())
        assert found(database_url, working) == []
        let_go.set()
        run.result(timeout=30)
    assert Effects.ledger.counts() == {"act 1": 1, "held": 1}


def test_run_that_moved_during_replay_is_read_again(database_url):
    id = begin(database_url, walk)
    replays = []

    async def moves_meanwhile(ctx: Context) -> None:
        replays.append(ctx.attempt)
        await asyncio.get_running_loop().run_in_executor(None, finish_with_the_old_code)  # outside the context
        raise KeyError("never seen by anyone")

    def finish_with_the_old_code() -> None:
        with Deployed(database_url, walk) as old:
            old.app.emit("dawn", 1)
            drain(old.app)

    assert found(database_url, moves_meanwhile) == []
    assert replays == [1]
    with Deployed(database_url, walk) as old:
        assert old.app.get_run(id).info().state == "done"
