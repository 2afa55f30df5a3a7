"""Operators' view of durable functions: steps, waits, children; fork, send and emit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

import pytest

from holdfast import Context, Holdfast, Retry
from holdfast.control import Control
from holdfast.errors import BadArguments, ConfigError, NotSerializable, RunFinished, RunNotFound
from tests.support.durable import drain
from tests.support.history_queries import fetch

ONCE = Retry(max_attempts=1)


@pytest.fixture
def app(database_url: str) -> Iterator[Holdfast]:
    with Holdfast(database_url) as app:
        yield app


@pytest.fixture
def control(app: Holdfast) -> Control:
    return Control(app.store, app.registry)


def double(n: int) -> int:
    return 2 * n


def break_down(text: str) -> None:
    raise ValueError(text)


def shape(control, run):
    return [(step.label, step.kind, step.value) for step in control.runs.details(run.id).steps]


def test_steps_are_told_in_order_with_what_came_of_them(app, control):
    @app.task(name="walk")
    async def walk(ctx: Context, n: int) -> int:
        await ctx.step(double, n)
        await ctx.step(double, n)
        try:
            await ctx.step(break_down, "no way")
        except Exception:
            await ctx.step(double, 5, name="mend")
        await ctx.now()
        await ctx.emit("walked", {"far": True})
        return n

    run = walk.enqueue(3)
    drain(app)
    steps = control.runs.details(run.id).steps
    assert [step.label for step in steps] == ["double", "double #2", "break_down", "mend", "now", "emit walked"]
    assert [step.n for step in steps] == sorted(step.n for step in steps)
    assert [step.value for step in steps[:4]] == [6, 6, None, 10]
    failed = steps[2]
    assert (failed.kind, failed.error.type, failed.error.message) == ("failed", "ValueError", "no way")
    assert all(step.took is not None and step.took >= 0 for step in steps[:4])
    assert steps[4].value == steps[4].at
    assert steps[5].value is True
    assert not any(step.undo or step.undone_at for step in steps)


def test_waiting_run_shows_waits_with_times(app, control):
    @app.task(name="idle")
    async def idle(ctx: Context) -> None:
        await asyncio.gather(
            ctx.sleep(3600, name="nap"),
            ctx.wait_for("dawn", timeout=timedelta(days=1)),
            ctx.receive("letters"),
            ctx.call(app.remote("elsewhere.child"), 1),
        )

    run = idle.enqueue()
    drain(app)
    details = control.runs.details(run.id)
    waits = {wait.kind: wait for wait in details.waits}
    assert details.info.state == "waiting"
    assert {kind: wait.name for kind, wait in waits.items()} == {
        "sleep": "nap", "event": "dawn", "message": "letters", "children": "elsewhere.child"
    }  # fmt: skip
    assert (waits["sleep"].due_at - waits["sleep"].since).total_seconds() == pytest.approx(3600, abs=1)
    assert (waits["event"].due_at - waits["event"].since).total_seconds() == pytest.approx(86400, abs=1)
    assert waits["message"].due_at is None
    assert waits["children"].pending == 1
    assert all(wait.outcome is None for wait in details.waits)


def test_resolved_wait_is_marked(app, control):
    @app.task(name="idle")
    async def idle(ctx: Context) -> None:
        await asyncio.gather(ctx.wait_for("dawn"), ctx.wait_for("dusk"))

    run = idle.enqueue()
    drain(app)
    assert control.events.emit("dawn", 1)
    waits = {wait.name: wait.outcome for wait in control.runs.waits(run.id)}
    assert waits == {"dawn": "event", "dusk": None}


def test_children_are_told_with_the_call_that_made_them_and_their_state(app, control):
    @app.task(name="child", retry=ONCE)
    def child(n: int) -> int:
        if n == 1:
            raise ValueError("one")
        return n

    @app.task(name="parent")
    async def parent(ctx: Context) -> None:
        await ctx.map(child, range(60), errors="return")
        await ctx.call(child, 100)

    run = parent.enqueue()
    drain(app)
    details = control.runs.details(run.id)
    spawned = {step.kind: step.key for step in details.steps if step.kind in ("map", "spawn")}
    assert len(details.children) == 50
    assert details.more_children
    assert {child.spawn for child in details.children} == {spawned["map"]}
    assert [child.place for child in details.children] == list(range(50))
    assert [child.state for child in details.children[:3]] == ["done", "failed", "done"]
    assert details.children[1].error.message == "one"
    assert control.runs.info(details.children[0].id).parent == run.id


def test_steps_with_compensations_are_marked_and_so_are_those_that_were_undone(app, control):
    @app.task(name="saga", retry=ONCE)
    async def saga(ctx: Context) -> None:
        await ctx.step(double, 1, undo=double)
        await ctx.step(double, 2)
        await ctx.wait_for("go")
        await ctx.step(break_down, "stop")

    run = saga.enqueue()
    drain(app)
    marks = [(step.undo, step.undone_at is not None) for step in control.runs.details(run.id).steps]
    assert marks == [(True, False), (False, False)]
    control.runs.cancel(run.id, "enough")
    details = control.runs.details(run.id)
    assert (details.info.state, details.ending, details.info.error.message) == ("undoing", "cancelled", "enough")
    drain(app)
    details = control.runs.details(run.id)
    assert (details.info.state, details.ending) == ("cancelled", None)
    first, _second, undone = details.steps
    assert first.undone_at == undone.at
    assert (undone.kind, undone.label) == ("undone", "undone double")


def test_restarted_run_shows_count_and_current_steps(app, control):
    @app.task(name="again")
    async def again(ctx: Context, n: int) -> int:
        await ctx.step(double, n)
        if n < 3:
            await ctx.restart(n + 1)
        return n

    run = again.enqueue(1)
    drain(app)
    details = control.runs.details(run.id)
    assert details.restarts == 2
    assert shape(control, run) == [("double", "step", 6)]
    told = [(entry.kind, entry.attempt) for entry in details.history]
    assert told == [("enqueued", 0), *[("started", 1), ("restarted", 1)] * 2, ("started", 1), ("done", 1)]


def test_progress_and_parent_are_in_the_info(app, control):
    @app.task(name="slow")
    async def slow(ctx: Context) -> None:
        await ctx.progress(1, 4, "a quarter")
        await ctx.wait_for("never")

    run = slow.enqueue()
    drain(app)
    progress = control.runs.details(run.id).info.progress
    assert (progress.done, progress.total, progress.note) == (1, 4, "a quarter")


def test_a_job_has_no_steps_waits_or_children(app, control):
    run = app.remote("job").enqueue(1)
    details = control.runs.details(run.id)
    assert (details.steps, details.waits, details.children, details.more_children) == ([], [], [], False)


# Fork


@pytest.fixture
def finished(app):
    @app.task(name="walk")
    async def walk(ctx: Context, n: int) -> int:
        a = await ctx.step(double, n)
        await ctx.sleep(0, name="rest")
        b = await ctx.step(double, a)
        return await ctx.step(double, b, name="last")

    run = walk.enqueue(1)
    drain(app)
    assert run.result(timeout=1) == 8
    return run


@pytest.mark.parametrize(
    ("from_step", "kept"),
    [(None, 0), ("double", 0), ("sleep rest", 1), ("$sleep:rest", 1), ("last", 3)],
)
def test_a_fork_has_what_was_recorded_before_a_step_named_as_show_names_it(app, control, finished, from_step, kept):
    fork = control.runs.fork(finished.id, from_step)
    taken_over = [(step.key, step.value) for step in control.runs.steps(fork)]
    assert taken_over == [(step.key, step.value) for step in control.runs.steps(finished.id)][:kept]
    assert control.runs.details(fork).history[1].data["steps"] == kept
    drain(app)
    assert control.runs.info(fork).result == 8
    assert control.runs.info(finished.id).state == "done"


def test_a_fork_is_made_from_a_key_too(control, finished):
    last = control.runs.steps(finished.id)[-1]
    assert len(control.runs.steps(control.runs.fork(finished.id, last.key))) == 3


@pytest.mark.parametrize("args", [[5], {"n": 5}])
def test_a_fork_may_have_other_arguments(app, control, finished, args):
    fork = control.runs.fork(finished.id, None, args)
    drain(app)
    assert control.runs.info(fork).result == 40


def test_arguments_of_a_fork_are_checked_where_the_code_is_known_and_kept_as_they_are_elsewhere(app, control, finished):
    with pytest.raises(BadArguments, match="Expected `int`"):
        control.runs.fork(finished.id, None, ["five"])
    with pytest.raises(ConfigError, match="a list or a mapping, not str"):
        control.runs.fork(finished.id, None, "five")
    without_code = Control(app.store)
    fork = without_code.runs.fork(finished.id, None, [5])
    drain(app)
    assert control.runs.info(fork).result == 40


def test_unknown_step_lists_recorded_steps(control, finished):
    with pytest.raises(ConfigError, match="has not recorded a step 'lst': it has double, sleep rest, last"):
        control.runs.fork(finished.id, "lst")
    with pytest.raises(RunNotFound):
        control.runs.fork(UUID(int=1))


# Send and emit


def test_messages_of_operators_are_received_in_order(app, control):
    @app.task(name="listen")
    async def listen(ctx: Context) -> list[object]:
        return [await ctx.receive("letters"), await ctx.receive("letters")]

    run = listen.enqueue()
    drain(app)
    control.runs.send(run.id, "letters", {"a": 1})
    control.runs.send(run.id, "letters")
    drain(app)
    assert run.result(timeout=1) == [{"a": 1}, None]
    with pytest.raises(RunFinished, match="is done"):
        control.runs.send(run.id, "letters", 3)
    with pytest.raises(RunNotFound):
        control.runs.send(UUID(int=1), "letters")


def test_the_first_event_of_a_name_counts_for_its_tenant(app, control):
    @app.task(name="wait")
    async def wait(ctx: Context) -> object:
        return await ctx.wait_for("dawn")

    ours, theirs = wait.enqueue(), wait.options(tenant="acme").enqueue()
    drain(app)
    assert control.events.emit("dawn", "first", "acme")
    assert not control.events.emit("dawn", "second", "acme")
    drain(app)
    assert theirs.result(timeout=1) == "first"
    assert ours.info().state == "waiting"


@pytest.mark.parametrize("bad", ["", "a\nb", "x" * 10_000])
def test_invalid_event_or_topic_is_rejected(app, control, bad):
    run = app.remote("any").enqueue()
    with pytest.raises(ConfigError):
        control.events.emit(bad)
    with pytest.raises(ConfigError):
        control.runs.send(run.id, bad)
    with pytest.raises(NotSerializable):
        control.events.emit("dawn", float("nan"))


def test_costs_of_steps_are_shown_by_limit(app, control):
    app.limit("tokens", rate="100/min", cost=40)
    app.limit("each", rate="100/min", cost=1, by="name")

    async def ask(name: str) -> str:
        return name

    @app.task(name="answer")
    async def answer(ctx: Context) -> None:
        await ctx.options(limits=["tokens", "each"]).step(ask, "ada")
        await ctx.adjust("tokens", 7)

    run = answer.enqueue()
    drain(app)
    shown = {step.kind: step.value for step in control.runs.details(run.id).steps}
    assert shown["permit"] == {"tokens": 40, 'each for "ada"': 1}
    assert shown["adjust"] == "ask"
    fetch(app, "update {}checkpoints set value = '[7]' where kind in ('permit', 'adjust')")
    shown = {step.kind: step.value for step in control.runs.details(run.id).steps}
    assert (shown["permit"], shown["adjust"]) == ([7], None), "corrupt values stop nothing"
