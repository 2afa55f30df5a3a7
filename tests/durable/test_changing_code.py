"""Identity: steps are identified by name and arguments, so that code may change while runs are in flight."""

from __future__ import annotations

import asyncio
import functools
import time
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Context, Retry, SyncContext
from holdfast.errors import ConfigError, TaskError
from tests.support.durable import drain, kinds, state

ONCE = Retry(max_attempts=1)


class Release:
    """The task `work`, whose body is replaced between two workers, as by a deployment."""

    def __init__(self, make_app):
        self._make_app = make_app

    def deploy(self, body):
        app = self._make_app()

        @app.task(name="work", retry=ONCE)
        async def work(ctx: Context) -> object:
            return await body(ctx)

        self.app, self.work = app, work
        return app


@pytest.fixture
def release(make_app):
    return Release(make_app)


def test_steps_may_be_added_removed_and_reordered(release, effects, ledger):
    async def before(ctx):
        for what in "abc":
            await ctx.step(effects.note, what)
        await ctx.wait_for("go")

    async def after(ctx):
        got = [await ctx.step(effects.note, what) for what in ("c", "new", "a")]
        await ctx.wait_for("go")
        return got

    app = release.deploy(before)
    run = release.work.enqueue()
    drain(app)
    app.emit("go")
    drain(release.deploy(after))
    assert run.result(timeout=5) == ["c", "new", "a"]
    assert ledger.counts() == {"a": 1, "b": 1, "c": 1, "new": 1}


def test_the_branches_of_a_gather_may_change(release, effects, ledger):
    async def before(ctx):
        await asyncio.gather(*(ctx.step(effects.note, what) for what in "abc"))
        await ctx.wait_for("go")

    async def after(ctx):
        got = await asyncio.gather(*(ctx.step(effects.note, what) for what in ("d", "c", "a")))
        return [*got, await ctx.wait_for("go")]

    app = release.deploy(before)
    run = release.work.enqueue()
    drain(app)
    app.emit("go", "went")
    drain(release.deploy(after))
    assert run.result(timeout=5) == ["d", "c", "a", "went"]
    assert ledger.counts() == {"a": 1, "b": 1, "c": 1, "d": 1}


def test_a_step_with_other_arguments_is_a_new_step_and_the_history_reports_drift(release, effects, ledger):
    async def before(ctx):
        await ctx.step(effects.note, "old")
        await ctx.wait_for("go")

    async def after(ctx):
        await ctx.step(effects.note, "new")
        await ctx.wait_for("go")

    app = release.deploy(before)
    run = release.work.enqueue()
    drain(app)
    [key] = [step.key for step in app.store.queries.steps(str(run.id))]
    app.emit("go")
    drain(release.deploy(after))
    assert ledger.lines() == ["old", "new"]
    [entry] = [entry for entry in run.history() if entry.kind == "drift"]
    assert entry.data == {"steps": {"note": [key]}}
    assert kinds(run) == ["enqueued", "started", "waiting", "resumed", "drift", "done"]


@pytest.mark.parametrize("waits_again", [False, True])
def test_a_renamed_step_is_recorded_as_drift_when_it_runs_again(release, effects, ledger, caplog, waits_again):
    async def before(ctx):
        await ctx.step(effects.note, "ada", name="charge")
        await ctx.step(effects.note, "ada", name="mail")
        await ctx.wait_for("go")

    async def after(ctx):
        await ctx.step(effects.note, "ada", name="charge_card")
        await ctx.step(effects.note, "ada", name="mail")
        await ctx.wait_for("go")
        await ctx.step(effects.note, "bob", name="ship")
        if waits_again:
            await ctx.wait_for("end")

    app = release.deploy(before)
    run = release.work.enqueue()
    drain(app)
    key = next(step.key for step in app.store.queries.steps(str(run.id)))
    app.emit("go")
    app = release.deploy(after)
    drain(app)
    drift = {"steps": {"charge": [key]}, "renamed": {"charge": "charge_card"}}
    assert ledger.counts() == {"ada": 3, "bob": 1}
    assert kinds(run)[4:] == ["drift", "waiting" if waits_again else "done"]
    assert [entry.data for entry in run.history() if entry.kind == "drift"] == [drift]
    (record,) = [record.getMessage() for record in caplog.records if "under another name" in record.getMessage()]
    assert "step=charge_card recorded=charge hint='if it was renamed, give it name=\"charge\"'" in record
    if waits_again:
        app.emit("end")
        drain(app)
        assert kinds(run).count("drift") == 1, "it didn't run again"


def test_a_renamed_step_of_a_sync_function_is_recorded_as_drift(make_app, effects, ledger):
    def deploy(name: str):
        app = make_app()

        @app.task(name="work", retry=ONCE)
        def work(ctx: SyncContext) -> None:
            ctx.step(effects.note, "ada", name=name)
            ctx.wait_for("go")
            ctx.wait_for("end")

        return app, work

    app, work = deploy("charge")
    run = work.enqueue()
    drain(app)
    app.emit("go")
    drain(deploy("charge_card")[0])
    (entry,) = [entry for entry in run.history() if entry.kind == "drift"]
    assert (state(run), entry.data["renamed"]) == ("waiting", {"charge": "charge_card"})


BEFORE = ("a", "b", "$wait", "c", "d")


def report_after_each(ctx, effects, names):
    """Yield the calls of a function that reports its progress after each step."""
    for number, name in enumerate(names, 1):
        yield ctx.wait_for("go") if name == "$wait" else ctx.step(effects.note, name)
        yield ctx.progress(number, len(names))


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize(
    "after",
    [
        ("b", "$wait", "c", "d"),
        ("a", "$wait", "c", "d"),
        ("a", "renamed", "$wait", "c", "d"),
        ("a", "b"),
        ("a",),
        ("a", "b", "$wait", "c", "d"),
    ],
    ids=" ".join,
)
def test_progress_continues_after_recorded_steps_were_removed_or_renamed(make_app, effects, sync, after):
    def deploy(names):
        app = make_app()

        async def work(ctx: Context) -> None:
            for call in report_after_each(ctx, effects, names):
                await call

        def sync_work(ctx: SyncContext) -> None:
            for _ in report_after_each(ctx, effects, names):
                pass

        return app, app.task(name="work", retry=ONCE)(sync_work if sync else work)

    app, work = deploy(BEFORE)
    run = work.enqueue()
    drain(app)
    assert run.info().progress.done == 2
    app, _ = deploy(after)
    app.emit("go")
    drain(app)
    progress = run.info().progress
    assert (state(run), progress.done, progress.total) == ("done", len(after), len(after))


def test_the_last_report_before_a_wait_is_shown_though_a_recorded_step_was_removed(release, effects):
    async def before(ctx):
        await ctx.step(effects.note, "a")
        await ctx.step(effects.note, "b")
        await ctx.progress(2, 5)
        await ctx.wait_for("go")

    async def after(ctx):
        await ctx.step(effects.note, "a")
        await ctx.progress(3, 5)
        await ctx.wait_for("other")

    app = release.deploy(before)
    run = release.work.enqueue()
    drain(app)
    app.emit("go")
    drain(release.deploy(after))
    assert (state(run), run.info().progress.done) == ("waiting", 3)


def test_steps_that_the_code_has_not_reached_yet_are_no_drift(release, effects, ledger):
    async def before(ctx):
        await ctx.step(effects.note, "ada", name="charge")
        await ctx.wait_for("go")

    async def after(ctx):
        await ctx.step(effects.note, "ada", name="check")
        await ctx.step(effects.note, "bob", name="charge")
        await ctx.wait_for("checked")
        await ctx.step(effects.note, "ada", name="charge")
        await ctx.wait_for("go")

    app = release.deploy(before)
    run = release.work.enqueue()
    drain(app)
    app.emit("go")
    app = release.deploy(after)
    drain(app)
    app.emit("checked")
    drain(app)
    assert state(run) == "done"
    assert "drift" not in kinds(run)
    assert ledger.counts() == {"ada": 2, "bob": 1}


def test_a_sleep_for_what_is_left_until_a_time_ends(timed_app, clock, ledger):
    """The duration differs at each replay."""
    until = time.time() + 1000

    @timed_app.task(name="work")
    async def work(ctx: Context) -> str:
        left = until - time.time()
        ledger.write(left)
        await ctx.sleep(left)
        await ctx.wait_for("go", timeout=left)
        return "awake"

    run = work.enqueue()
    drain(timed_app)
    clock.forward(1000)
    drain(timed_app)
    assert state(run) == "waiting"
    timed_app.emit("go")
    drain(timed_app)
    assert run.result(timeout=5) == "awake"
    assert len(set(ledger.lines())) == 3


def test_equal_arguments_in_another_form_are_the_same_step(release, ledger):
    def step(**given: object) -> int:
        ledger.write("ran")
        return 1

    noon = datetime(2026, 1, 2, 12, tzinfo=UTC)

    async def before(ctx):
        await ctx.options(name="step").step(step, a={"x": 1, "y": 2}, b=noon)
        await ctx.wait_for("go")

    async def after(ctx):
        berlin = noon.astimezone(datetime.now().astimezone().tzinfo) + timedelta(0)
        await ctx.options(name="step").step(step, b=berlin, a={"y": 2, "x": 1})
        await ctx.wait_for("go")

    app = release.deploy(before)
    release.work.enqueue()
    drain(app)
    app.emit("go")
    drain(release.deploy(after))
    assert ledger.lines() == ["ran"]


def test_the_same_step_again_is_another_occurrence(release, ledger):
    def count() -> int:
        ledger.write("ran")
        return len(ledger.lines())

    async def twice(ctx):
        first = await ctx.step(count, name="count")
        await ctx.wait_for("go")
        return [first, await ctx.step(count, name="count")]

    app = release.deploy(twice)
    run = release.work.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    assert run.result(timeout=5) == [1, 2]


def test_a_callable_without_a_name_needs_one(app, effects, ledger):
    captured = 1

    def closure() -> int:
        return captured

    @app.task(name="work", retry=ONCE)
    async def work(ctx: Context) -> list[int]:
        for nameless in (lambda: 1, closure, functools.partial(int, "3")):
            with pytest.raises(TaskError, match="name="):
                await ctx.step(nameless)
        return [
            await ctx.step(lambda: 1, name="one"),
            await ctx.step(closure, name="two"),
            await ctx.options(name="three").step(functools.partial(int, "3")),
        ]

    run = work.enqueue()
    drain(app)
    assert run.result(timeout=5) == [1, 1, 3]


@pytest.mark.parametrize("name", ["$own", "", "x" * 10_240, "a\0b", "\ud800"], ids=["dollar", "empty", "10 KB", *"ab"])
def test_invalid_step_names_are_rejected(app, effects, ledger, name):
    @app.task(name="work", retry=ONCE)
    async def work(ctx: Context) -> int:
        with pytest.raises(ConfigError):
            await ctx.step(effects.note, "x", name=name)
        with pytest.raises(ConfigError):
            ctx.options(name=name)
        return 1

    run = work.enqueue()
    drain(app)
    assert (run.result(timeout=5), ledger.lines()) == (1, [])


@pytest.mark.parametrize("name", ["it's; drop table x", 'say "hi"#1', "a-1:00#2", "{schema}", "ü 🎉"], ids=range(5))
def test_unusual_step_names_are_accepted(app, effects, ledger, name):
    @app.task(name="work", retry=ONCE)
    async def work(ctx: Context) -> str:
        got = await ctx.step(effects.note, "x", name=name)
        await ctx.wait_for("go")
        return got

    run = work.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    assert (run.result(timeout=5), ledger.lines()) == ("x", ["x"])


def test_a_job_that_became_a_durable_function_continues_its_runs(make_app, effects, ledger):
    first = make_app()

    @first.task(name="work")
    def plain(n: int) -> int:
        raise AssertionError("never run")

    run = plain.enqueue(4)
    second = make_app()

    @second.task(name="work")
    async def durable(ctx: Context, n: int) -> int:
        await ctx.step(effects.note, "step")
        return n

    drain(second)
    assert run.result(timeout=5) == 4
