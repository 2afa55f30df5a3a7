"""Log lines of runs: which are kept, with what, and how many; logging never fails, blocks or slows a run."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from holdfast import Context, Fatal, Logs, Retry, Secret, SyncContext
from holdfast.control import Control
from holdfast.engine.loops import base
from holdfast.engine.run_logs import RunLogHandler
from holdfast.errors import ConfigError, RunNotFound, StoreUnavailable
from tests.support.durable import drain, kinds, state
from tests.support.history_queries import fetch
from tests.support.wait_until import wait_until

shop = logging.getLogger("tests.shop")
ONCE = Retry(max_attempts=1)


@pytest.fixture(autouse=True)
def level() -> Iterator[None]:
    """Let the application's logger create records of all levels, as a configured application does."""
    shop.setLevel(logging.DEBUG)
    yield
    shop.setLevel(logging.NOTSET)


@pytest.fixture
def app(make_app):
    return make_app(logs="info")


def messages(run, **filters):
    return [line.message for line in run.logs(**filters)]


def say(what: str) -> str:
    shop.info("step %s", what)
    return what


def test_lines_of_jobs_are_kept_with_time_level_logger_message_and_attempt(app):
    @app.task(name="async")
    async def in_loop() -> None:
        shop.info("one %d", 1)
        await asyncio.to_thread(shop.warning, "in a thread of its own")

    @app.task(name="thread", retry=Retry(max_attempts=2, delay=0))
    def in_thread() -> None:
        shop.debug("not kept")
        shop.error("fails")
        raise ValueError("no")

    before = datetime.now(UTC)
    first, second = in_loop.enqueue(), in_thread.enqueue()
    wait = app.worker(threads=2)
    with wait:
        wait_until(lambda: first.info().final and second.info().final)
    one, two = first.logs()
    assert (one.seq, one.level, one.logger, one.message, one.attempt, one.step) == (
        1, "INFO", "tests.shop", "one 1", 1, None,
    )  # fmt: skip
    assert before - timedelta(seconds=1) <= one.time <= two.time <= datetime.now(UTC) + timedelta(seconds=1)
    assert (two.seq, two.level, two.message) == (2, "WARNING", "in a thread of its own")
    assert [(line.message, line.attempt, line.seq) for line in second.logs()] == [("fails", 1, 1), ("fails", 2, 2)]
    assert first.logs().dropped == 0


@pytest.mark.parametrize("max_resident", [0, 1000])
def test_a_durable_function_that_replays_stores_each_line_once(app, max_resident):
    @app.task(name="order", retry=ONCE)
    async def order(ctx: Context) -> None:
        shop.info("begins")
        await ctx.step(say, "a")
        shop.info("waits")
        await ctx.wait_for(f"go {ctx.run_id}")
        shop.info("goes on")
        await ctx.sleep(0.2)
        await ctx.step(say, "b")
        shop.info("ends")

    run = order.enqueue()
    with app.worker(max_resident=max_resident):
        wait_until(lambda: state(run) == "waiting")
        app.emit(f"go {run.id}")
        run.result(timeout=30)
    assert [(line.message, line.step) for line in run.logs()] == [
        ("begins", None), ("step a", "say"), ("waits", None), ("goes on", None), ("step b", "say"), ("ends", None),
    ]  # fmt: skip
    assert [line.seq for line in run.logs()] == [1, 2, 3, 4, 5, 6]
    assert kinds(run).count("waiting") >= 1, "it wasn't suspended"


def test_a_sync_function_and_its_compensations_store_each_line_once(app):
    def undo(what: str) -> None:
        shop.info("undo %s", what)

    @app.task(name="order", retry=ONCE)
    def order(ctx: SyncContext) -> None:
        shop.info("begins")
        ctx.options(undo=undo).step(say, "a")
        ctx.sleep(0.1)
        shop.info("fails")
        raise Fatal("no")

    run = order.enqueue()
    with app.worker():
        wait_until(lambda: run.info().final)
    assert messages(run) == ["begins", "step a", "fails", "undo a"]
    assert run.logs()[-1].step == "undone say"


def test_a_retried_function_stores_only_what_it_does_again(app):
    tries = []

    @app.task(name="order", retry=Retry(max_attempts=2, delay=0))
    async def order(ctx: Context) -> None:
        shop.info("begins")
        await ctx.step(say, "a")
        shop.info("try")
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("again")

    run = order.enqueue()
    with app.worker():
        run.result(timeout=30)
    assert [(line.message, line.attempt) for line in run.logs()] == [
        ("begins", 1), ("step a", 1), ("try", 1), ("try", 2),
    ]  # fmt: skip


@pytest.mark.parametrize("lost", ["commit", "reply"])
def test_a_commit_that_is_repeated_keeps_each_line_once(app, monkeypatch, lost):
    monkeypatch.setattr(base, "FIRST_RETRY_PAUSE_S", 0.01)
    record, calls = app.store.logs.record, []

    def fail_first(session, writes):
        calls.append(len(writes.groups))
        if lost == "reply" or len(calls) > 1:
            record(session, writes)
        if len(calls) == 1:
            raise StoreUnavailable("gone")

    monkeypatch.setattr(app.store.logs, "record", fail_first)

    @app.task(name="order", retry=ONCE)
    async def order(ctx: Context) -> None:
        shop.info("begins")
        await ctx.step(say, "a")
        shop.info("ends")

    run = order.enqueue()
    with app.worker():
        run.result(timeout=30)
    assert len(calls) > 1
    assert messages(run) == ["begins", "step a", "ends"]
    assert run.logs().dropped == 0


def test_lines_can_be_filtered_searched_and_paged(app):
    @app.task(name="job")
    async def job() -> None:
        for number in range(6):
            shop.log(logging.INFO if number % 2 else logging.ERROR, "Line %d", number)

    run = job.enqueue()
    drain(app)
    assert messages(run, level="warning") == ["Line 0", "Line 2", "Line 4"]
    assert messages(run, search="line 3") == ["Line 3"]
    assert messages(run, search="TESTS.shop", level="error") == ["Line 0", "Line 2", "Line 4"]
    first = run.logs(limit=4)
    assert (len(first), first.after) == (4, 4)
    rest = run.logs(after=first.after, limit=4)
    assert ([line.message for line in rest], rest.after) == (["Line 4", "Line 5"], None)
    assert run.logs(limit=6).after is None
    assert asyncio.run(run.alogs(after=5))[0].message == "Line 5"
    assert [line.message for line in Control(app.store).runs.logs(run.id, tail=2)] == ["Line 4", "Line 5"]
    for wrong in ({"level": "loud"}, {"after": -1}, {"limit": 0}, {"search": 5}, {"after": "1"}):
        with pytest.raises(ConfigError):
            run.logs(**wrong)


@pytest.mark.parametrize(
    "settings",
    [Logs("info", max_lines=80), Logs("info", max_bytes=4096)],
    ids=["lines", "bytes"],
)
def test_the_newest_lines_are_kept_and_dropped_ones_are_counted(make_app, settings):
    app = make_app(logs=settings)

    @app.task(name="job", retry=Retry(max_attempts=2, delay=0))
    async def job() -> None:
        for number in range(300):
            shop.info("%d %s", number, "x" * 20)
            if number % 50 == 0:
                await asyncio.sleep(0)
        raise ValueError("no")

    run = job.enqueue()
    with app.worker():
        wait_until(lambda: run.info().final)
    found = run.logs()
    numbers = [int(line.message.split()[0]) for line in found]
    assert numbers == list(range(300 - len(found), 300)), "not the newest ones"
    assert {line.attempt for line in found} == {2}
    assert found.dropped == 600 - len(found)
    assert found[-1].seq == 600
    if settings.max_lines == 80:
        assert 60 <= len(found) <= 80
    else:
        stored = fetch(app, "select sum(length(data)) from {}logs")[0][0]
        assert 2000 <= stored <= 4096


def test_lines_of_a_running_job_become_visible_before_it_ends(app):
    go, logged = threading.Event(), threading.Event()

    @app.task(name="job")
    def job() -> None:
        shop.info("works")
        logged.set()
        go.wait(30)
        shop.info("done")

    run = job.enqueue()
    with app.worker():
        assert logged.wait(30)
        wait_until(lambda: messages(run) == ["works"])
        assert state(run) == "running"
        go.set()
        run.result(timeout=30)
    assert messages(run) == ["works", "done"]


def test_lines_after_the_loss_of_a_run_are_refused(app):
    go, logged, ended = threading.Event(), threading.Event(), threading.Event()

    @app.task(name="job", retry=ONCE)
    def job() -> None:
        shop.info("before")
        logged.set()
        go.wait(30)
        shop.info("after")
        ended.set()

    run = job.enqueue()
    with app.worker():
        assert logged.wait(30)
        wait_until(lambda: messages(run) == ["before"])
        run.cancel()
        go.set()
        assert ended.wait(30)
    assert messages(run) == ["before"]


def test_without_the_setting_nothing_is_installed_and_nothing_kept(make_app, monkeypatch):
    monkeypatch.delenv("HOLDFAST_LOGS", raising=False)
    app = make_app()
    seen = []

    @app.task(name="job")
    async def job() -> None:
        seen.extend(logging.getLogger().handlers)
        shop.info("line")

    run = job.enqueue()
    drain(app)
    assert not any(isinstance(handler, RunLogHandler) for handler in seen)
    assert run.logs() == []
    assert fetch(app, "select count(*) from {}logs") == [(0,)]


def test_the_handler_is_installed_only_while_a_worker_runs(app):
    def installed() -> int:
        return sum(isinstance(handler, RunLogHandler) for handler in logging.getLogger().handlers)

    assert installed() == 0
    with app.worker(), app.worker():
        assert installed() == 1
    assert installed() == 0


def test_the_setting_is_a_level_or_logs_and_has_a_variable(make_app, monkeypatch):
    monkeypatch.setenv("HOLDFAST_LOGS", "warning")
    assert make_app()._logs == Logs("warning")
    assert make_app(logs=False)._logs is None
    assert make_app(logs="off")._logs is None
    assert make_app(logs="DEBUG")._logs == Logs("debug")
    monkeypatch.setenv("HOLDFAST_LOGS", "off")
    assert make_app()._logs is None
    for wrong in ("loud", 20, True):
        with pytest.raises(ConfigError, match="logs must be"):
            make_app(logs=wrong)
    for name, value in (("max_lines", 0), ("max_bytes", 100), ("max_lines", "many")):
        with pytest.raises(ConfigError, match=name):
            Logs(**{name: value})
    with pytest.raises(AttributeError, match="immutable"):
        Logs().max_lines = 3  # type: ignore[misc]


def test_secrets_that_the_code_reveals_are_masked(app):
    @app.task(name="job", retry=ONCE)
    def job(token: Secret[str], account: Secret[dict[str, str]]) -> None:
        shop.info("token %s", token)
        shop.info("revealed %s and %s", token.reveal(), account.reveal())
        try:
            raise ValueError(f"refused {token.reveal()}")
        except ValueError:
            shop.exception("failed")

    run = job.enqueue(Secret("hunter2-long"), Secret({"pin": "90210"}))
    drain(app)
    assert messages(run)[:2] == ["token ***", "revealed *** and {'pin': '***'}"]
    failed = messages(run)[2]
    assert "ValueError: refused ***" in failed
    stored = str(fetch(app, "select data from {}logs"))
    assert "hunter2" not in stored
    assert "90210" not in stored


def test_strange_lines_are_kept_and_never_fail_the_run(app):
    class Broken:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    def log(message: object, *args: object) -> None:
        """Log without the handlers of pytest, which fail or report such lines."""
        (handler,) = (each for each in logging.getLogger().handlers if isinstance(each, RunLogHandler))
        handler.handle(shop.makeRecord("tests.shop", logging.INFO, __file__, 0, message, args, None))

    @app.task(name="job", retry=ONCE)
    async def job() -> str:
        log("nul \0, surrogate \ud800, newline\nand %s", "é" * 3)
        log("too few %s %s", 1)
        log(Broken())
        log("x" * 100_000)
        logging.getLogger("holdfast").warning("of Holdfast itself")
        return "fine"

    run = job.enqueue()
    with app.worker():
        assert run.result(timeout=30) == "fine"
    found = run.logs()
    assert found[0].message == "nul \0, surrogate \\ud800, newline\nand ééé"
    assert "can't be formatted" in found[1].message
    assert found[-1].message.startswith("xxxx")
    assert "(truncated; 100,000 characters in total)" in found[-1].message
    assert (len(found), found.dropped) == (3, 1)


class Rot13:
    def encode(self, data: bytes) -> bytes:
        return data[::-1]

    def decode(self, data: bytes) -> bytes:
        return data[::-1]


class BrokenCodec(Rot13):
    def encode(self, data: bytes) -> bytes:
        if b"secret line" in data:
            raise RuntimeError("no key")
        return data[::-1]


def test_lines_are_encoded_by_the_codec(make_app):
    app = make_app(logs="info", codec=Rot13())

    @app.task(name="job")
    async def job() -> None:
        shop.info("a private line")

    run = job.enqueue()
    drain(app)
    assert messages(run) == ["a private line"]
    assert "private" not in str(fetch(app, "select data from {}logs"))
    assert "can't be read" in Control(make_app().store).runs.logs(run.id)[0].message


def test_a_codec_that_fails_drops_the_lines_and_not_the_run(make_app):
    app = make_app(logs="info", codec=BrokenCodec())

    @app.task(name="job", retry=ONCE)
    async def job() -> str:
        shop.info("a secret line")
        return "fine"

    run = job.enqueue()
    with app.worker():
        assert run.result(timeout=30) == "fine"
    assert run.logs() == []


def test_lines_are_pruned_with_their_run(app):
    @app.task(name="job")
    async def job() -> None:
        shop.info("line")

    runs = [job.enqueue() for _ in range(3)]
    drain(app)
    assert fetch(app, "select count(*) from {}logs") == [(3,)]
    Control(app.store).upkeep.prune(older_than=timedelta(0))
    assert fetch(app, "select count(*) from {}logs") == [(0,)]
    with pytest.raises(RunNotFound):
        runs[0].logs()


def test_lines_that_the_database_rejects_are_dropped_and_not_the_run(app):
    @app.task(name="job", retry=ONCE)
    async def job(number: int) -> int:
        shop.info("line %d", number)
        return number

    runs = [job.enqueue(number) for number in range(4)]
    fetch(app, "update {}runs set fence = 0")  # connects
    trigger = (
        "create trigger no_second before insert on holdfast_logs when new.data like '%line 1%'"
        " begin select raise(abort, 'rejected'); end"
    )
    if app.url.startswith("postgres"):
        fetch(app, "alter table {}logs add constraint no_second check (data not like '%line 1%')")
    else:
        fetch(app, trigger)
    with app.worker():
        assert [run.result(timeout=30) for run in runs] == [0, 1, 2, 3]
    assert [messages(run) for run in runs] == [["line 0"], [], ["line 2"], ["line 3"]]


def test_a_worker_without_configured_logging_still_prints_warnings_and_keeps_info(tmp_path: Path):
    script = tmp_path / "program.py"
    script.write_text(
        "import logging\n"
        "from holdfast import Holdfast\n"
        f"app = Holdfast('sqlite:///{tmp_path}/jobs.db', logs='info')\n"
        "@app.task(name='job')\n"
        "async def job() -> None:\n"
        "    logging.getLogger('shop').info('quiet')\n"
        "    logging.getLogger('shop').warning('loud')\n"
        "run = job.enqueue()\n"
        "app.worker().drain()\n"
        "logging.getLogger('shop').warning('after')\n"
        "print([line.message for line in run.logs()], logging.getLogger().level)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60, env={**os.environ})
    assert done.stdout == "['quiet', 'loud'] 30\n"
    assert done.stderr == "loud\nafter\n"
