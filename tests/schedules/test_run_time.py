"""`app.schedules`: create, change, backfill and delete schedules while workers run; schedules of graphs."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import BadArguments, Graph, Holdfast
from holdfast.errors import ConfigError
from holdfast.testing import Kit
from tests.support.wait_until import wait_until

BEGIN = datetime.fromtimestamp(1_800_000_000, UTC)


@pytest.fixture
def report(timed_app, ledger):
    @timed_app.task(name="report")
    def report(number: int = 0) -> int:
        ledger.write(str(number))
        return number

    return report


def test_a_schedule_lives_without_a_declaration(timed_app, clock, report, ledger):
    schedules = timed_app.schedules
    made = schedules.create("report-7", report.request(7), cron="*/5 * * * *", tz="Europe/Oslo", by="ada")
    assert (made.app, made.state, made.cron, made.tz) == (None, "on", "*/5 * * * *", "Europe/Oslo")
    worker = timed_app.worker()
    clock.forward(300)
    assert worker.drain(timeout=60) == 1
    changed = schedules.update("report-7", report.request(8), every=60, overlap="skip")
    assert (changed.cron, changed.every, changed.overlap) == (None, 60, "skip")
    assert schedules.update("report-7", jitter=5).overlap == "skip", "what isn't given stays"
    clock.forward(66)
    assert timed_app.worker().drain(timeout=60) == 1
    assert schedules.pause("report-7")
    assert not schedules.pause("report-7")
    clock.forward(600)
    assert timed_app.worker().drain(timeout=60) == 0
    assert schedules.run("report-7", by="ada").info().state == "ready", "also if it is paused"
    schedules.resume("report-7")
    details = schedules.get("report-7")
    assert details.args == {"number": 8}
    assert [change.did for change in details.changes] == ["resumed", "run", "paused", "updated", "updated", "created"]
    assert details.changes[-1].by == "ada"
    runs = schedules.backfill("report-7", BEGIN + timedelta(seconds=600), BEGIN + timedelta(seconds=720))
    assert [run.info().scheduled_for for run in runs] == [BEGIN + timedelta(seconds=each) for each in (600, 660, 720)]
    schedules.delete("report-7")
    assert schedules.list() == []
    assert timed_app.worker().drain(timeout=60) == 4
    assert ledger.lines() == ["7"] + ["8"] * 5


def test_the_awaitable_forms_do_the_same(app):
    @app.task(name="note")
    async def note() -> None: ...

    async def use() -> list[str]:
        schedules = app.schedules
        await schedules.acreate("tick", note, every=3600, paused=True)
        await schedules.aupdate("tick", every=1800)
        await schedules.aresume("tick")
        await schedules.apause("tick")
        await schedules.arun("tick")
        await schedules.adeclare()
        now = datetime.now(UTC)
        assert len(await schedules.abackfill("tick", now - timedelta(hours=1), now)) == 2
        state = (await schedules.aget("tick")).schedule.state
        names = [each.name for each in await schedules.alist()]
        await schedules.adelete("tick")
        return [state, *names]

    assert asyncio.run(use()) == ["paused", "tick"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"cron": "0 25 * * *"}, "is not a valid hour"),
        ({"cron": "0 8 * * *", "tz": "Mars/Base"}, "unknown time zone"),
        ({"every": 60, "moon": "full"}, "unknown setting 'moon'"),
        ({}, "set exactly one of cron"),
    ],
)
def test_bad_settings_name_what_is_wrong(timed_app, report, settings, says):
    with pytest.raises(ConfigError, match=says):
        timed_app.schedules.create("tick", report, **settings)
    timed_app.schedules.create("tick", report, every=60)
    if settings:
        with pytest.raises(ConfigError, match=says):
            timed_app.schedules.update("tick", **settings)
    with pytest.raises(ConfigError, match="does not exist; known schedules: tick"):
        timed_app.schedules.get("tack")
    with pytest.raises(ConfigError, match=r"declare a function that returns a graph in code: app\.schedule"):
        timed_app.schedules.create("graph", lambda: None, every=60)


def test_new_arguments_keep_the_task_and_its_options(timed_app, clock, report, ledger):
    request = report.options(tenant="acme", priority=5).request(7)
    timed_app.schedules.create("tick", request, every=60)
    timed_app.schedules.update("tick", args=(8,), by="ada")
    clock.forward(61)
    timed_app.worker().drain(timeout=60)
    assert ledger.lines() == ["8"]
    (run,) = timed_app.runs()
    assert (run.tenant, run.priority) == ("acme", 5)
    with pytest.raises(BadArguments, match="report"):
        timed_app.schedules.update("tick", args=(1, 2, 3))


def test_a_running_worker_takes_up_changes_within_a_second(make_app, ledger):
    app = make_app()

    @app.task(name="note")
    def note(text: str) -> None:
        ledger.write(text)

    with app.worker():
        app.schedules.create("tick", note.request("first"), every=1)
        wait_until(lambda: "first" in ledger.lines(), 10)
        app.schedules.update("tick", note.request("second"))
        wait_until(lambda: "second" in ledger.lines(), 10)
        app.schedules.pause("tick")
        slots = len(app.schedules.get("tick").runs)
        wait_until(lambda: len(ledger.lines()) == slots, 10)
        app.schedules.delete("tick")
    assert len({run.scheduled_for for run in app.runs()}) == len(app.runs()), "one run per slot"


def test_encrypted_arguments_stay_encrypted_in_the_schedule(make_app, clock):
    class Reverse:
        def encode(self, data: bytes) -> bytes:
            return data[::-1]

        def decode(self, data: bytes) -> bytes:
            return data[::-1]

    app = make_app(clock=clock, codec=Reverse())

    @app.task(name="echo")
    def echo(text: str) -> str:
        return text

    app.schedules.create("tick", echo.request("confidential"), every=60)
    app.schedules.create("tick", echo.request("confidential"), every=60)
    app.schedules.update("tick", overlap="skip")
    assert app.schedules.get("tick").args == {"text": "confidential"}
    assert "confidential" not in str(app.store.schedules._execute("read", "read_schedule_actions", name="tick"))
    clock.forward(60)
    app.worker().drain(timeout=60)
    assert app.get_run(app.runs()[0].id).result() == "confidential"


def build(slot: datetime) -> Graph:
    g = Graph("nightly")
    g.add(echo, f"{slot:%H:%M}", name="first")
    return g


kit_app = Holdfast("sqlite:///:memory:")


@kit_app.task
def echo(text: str) -> str:
    return text


kit_app.schedule("nightly", build, every=3600, overlap="skip")


def test_a_function_that_returns_a_graph_is_scheduled():
    with Kit(kit_app) as kit:
        kit.drain()
        kit.clock.advance(timedelta(hours=1))
        kit.drain()
        (run,) = [run for run in kit_app.runs() if run.task.endswith("build")]
        slot = run.scheduled_for
        assert slot is not None
        assert kit_app.get_run(run.id).result() == {"first": f"{slot:%H:%M}"}


def test_sync_stores_new_declarations_for_running_workers(tmp_path, database_url):
    (tmp_path / "shop.py").write_text(
        "from holdfast import Holdfast\n"
        f"app = Holdfast({database_url!r}, name='shop')\n"
        "@app.task\n"
        "def report(): ...\n"
        "app.schedule('nightly', report, cron='@daily')\n"
    )
    command = [sys.executable, "-m", "holdfast.cli", "schedules", "sync", "--app", "shop:app"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout == "nightly  added\n"
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60)
    assert (said.stdout, said.stderr) == ("", "nothing changed\n")
