"""Durable hooks: tasks that the transaction which ends a run enqueues, in all ways of ending."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest

from holdfast import Context, Fatal, Graph, Holdfast, Retry, RunEnd, TaskDefaults
from holdfast.engine.attempt import crash_error, deadline_error
from holdfast.errors import ConfigError
from holdfast.model.failure import error_to_json
from tests.support.durable import drain, state
from tests.support.history_queries import fetch

ONCE = Retry(max_attempts=1)


class Hooked:
    """Tasks with hooks, and the ends that the hooks were given."""

    def __init__(self, app: Holdfast) -> None:
        self.app = app
        self.ends: list[tuple[str, RunEnd]] = []

        @app.task(name="succeeded")
        async def succeeded(end: RunEnd) -> None:
            self.ends.append(("success", end))

        @app.task(name="failed")
        def failed(end: RunEnd) -> None:
            self.ends.append(("failure", end))

        @app.task(name="ended")
        async def ended(ctx: Context, end: RunEnd) -> None:
            await ctx.step(str, "noted")
            self.ends.append(("end", end))

        self.defaults = TaskDefaults(on_success=succeeded, on_failure=[failed], on_end=ended, retry=ONCE)

        @app.task(name="work", defaults=self.defaults, max_crashes=0)
        async def work(how: str = "done") -> str:
            if how != "done":
                raise Fatal("declined", data={"code": 51})
            return how

        @app.task(name="durable", defaults=self.defaults)
        async def durable(ctx: Context, how: str = "done") -> str:
            if how == "wait":
                await ctx.wait_for("never")
            return await ctx.call(work, how)

        self.work, self.durable = work, durable

    def told(self) -> Counter[tuple[str, str, str]]:
        """Run all hooks; count them by hook, task and state."""
        drain(self.app)
        return Counter((hook, end.task, end.state) for hook, end in self.ends)


@pytest.fixture
def hooked(app: Holdfast) -> Hooked:
    return Hooked(app)


def told_once(*tasks: str, state: str) -> Counter[tuple[str, str, str]]:
    first = {"done": "success", "failed": "failure"}.get(state)
    return Counter((hook, task, state) for task in tasks for hook in (first, "end") if hook is not None)


def test_hooks_follow_success_and_failure_of_jobs_and_durable_functions(hooked):
    done, failed = hooked.durable.enqueue(), hooked.work.options(tenant="acme").enqueue("fail")
    expected = told_once("durable", "work", state="done") + told_once("work", state="failed")
    assert hooked.told() == expected
    (end,) = [end for hook, end in hooked.ends if hook == "failure"]
    assert (end.id, end.queue, end.attempt, end.tenant, end.state) == (failed.id, "default", 1, "acme", "failed")
    assert (end.error.code, end.error.data, end.error.traceback) == ("fatal", {"code": 51}, None)
    assert end.finished_at == failed.info().finished_at
    assert {end.tenant for hook, end in hooked.ends if end.task == "durable"} == {None}
    (hook,) = hooked.app.runs(task="failed")
    assert (hook.tenant, hook.parent, state(done)) == ("acme", None, "done")


def test_a_retried_attempt_has_no_hooks_and_a_retried_run_has_them_again(app, hooked):
    calls = []

    @app.task(name="flaky", on_failure=app.registry.get("failed"), retry=Retry(max_attempts=2, delay=0))
    async def flaky() -> None:
        calls.append(1)
        if len(calls) < 6:
            raise ValueError

    run = flaky.enqueue()
    assert hooked.told() == {("failure", "flaky", "failed"): 1}
    run.retry()
    assert hooked.told() == {("failure", "flaky", "failed"): 2}
    run.retry()
    assert hooked.told() == {("failure", "flaky", "failed"): 2}
    assert (len(calls), state(run)) == (6, "done")


def test_hooks_follow_ends_by_operators_timers_and_recovery(app, hooked):
    waiting = hooked.durable.enqueue("wait")
    drain(app)
    waiting.cancel()
    assert hooked.told() == told_once("durable", state="cancelled")
    hooked.ends.clear()
    overdue = hooked.work.options(delay=60, deadline=timedelta(seconds=30)).enqueue()
    fetch(app, f"update {{}}runs set deadline = 1 where id = '{overdue.id}'")
    app.store.timers.fail_overdue(error_to_json(deadline_error()))
    assert hooked.told() == told_once("work", state="failed")
    hooked.ends.clear()
    crashed = hooked.work.enqueue()
    app.store.sessions.open("w", "w", 1_000_000, "{}")
    assert [claim.id for claim in app.store.claims.claim("w", [next(iter(lanes(app, "work")))], 1)] == [str(crashed.id)]
    fetch(app, "update {}workers set lease_until = 1")
    app.store.sessions.recover(["w"], error_to_json(crash_error()))
    assert state(crashed) == "failed"
    assert hooked.told() == told_once("work", state="failed")


def lanes(app: Holdfast, task: str) -> list[int]:
    return [id for id, (_, name) in app.store.lanes.refresh().items() if name == task]


def test_hooks_follow_nodes_of_graphs_and_not_those_that_were_skipped(app, hooked):
    g = Graph("g")
    failed = g.add(hooked.work, "fail", name="failed")
    g.add(hooked.work, failed.output.default("done"), name="after")
    g.add(hooked.work, "done", name="skipped", after=[failed])
    typed = g.add(hooked.work, "done", name="typed")
    g.add(hooked.durable, typed.output["no"].default({"not": "text"}), name="bad")
    run = app.submit(g)
    drain(app)
    assert {name: info.state for name, info in run.nodes().items()} == {
        "failed": "failed", "after": "done", "skipped": "skipped", "typed": "done", "bad": "failed",
    }  # fmt: skip
    expected = told_once("work", "work", state="done") + told_once("work", state="failed")
    assert hooked.told() == expected + told_once("durable", state="failed")


def test_hooks_of_nodes_and_graphs_run_again_when_the_graph_is_retried(app, hooked):
    well = []

    @app.task(name="flaky", defaults=hooked.defaults)
    def flaky() -> None:
        if not well:
            raise ValueError

    inner = Graph("inner", on_success=app.registry.get("succeeded"), on_end=app.registry.get("ended"))
    inner.add(flaky, name="flaky")
    g = Graph("g", on_failure=app.registry.get("failed"), on_success=app.registry.get("succeeded"), key="k")
    g.add(hooked.work, name="kept")
    first = g.add(inner, name="inner")
    g.add(hooked.work, name="again", after=[first.finished])
    run = app.submit(g)
    drain(app)
    failed = told_once("flaky", state="failed") + Counter(
        {("end", "inner", "failed"): 1, ("failure", "g", "failed"): 1}
    )
    assert hooked.told() == failed + told_once("work", "work", state="done")
    hooked.ends.clear()
    well.append(1)
    run.retry()
    drain(app)
    assert state(run) == "done"
    inner_ends = Counter({("end", "inner", "done"): 1, ("success", "inner", "done"): 1, ("success", "g", "done"): 1})
    # The node that was kept doesn't end again; the one behind what failed does.
    assert hooked.told() == inner_ends + told_once("flaky", "work", state="done")
    assert app.submit(g).id == run.id  # hooks aren't part of what a key stands for
    with pytest.raises(ConfigError, match="graph h: on_end must be a task"):
        Graph("h", on_end=print)


def test_hooks_of_a_cancelled_graph(app, hooked):
    g = Graph("g", on_end=app.registry.get("ended"), on_failure=app.registry.get("failed"))
    g.gate("gate")
    app.submit(g).cancel()
    assert hooked.told() == {("end", "g", "cancelled"): 1}
    (end,) = [end for _, end in hooked.ends]
    assert (end.task, end.queue) == ("g", "$graph")


def test_a_hook_has_its_own_settings_and_hooks(app):
    told = []

    @app.task(name="last")
    def last(end: RunEnd) -> None:
        told.append(end.task)

    @app.task(name="first", queue="alerts", priority=5, limits=["slack"], on_end=last)
    def first(end: RunEnd) -> None: ...

    app.limit("slack", concurrency=1)

    @app.task(name="work", on_end=first.options(tags=["alert"], metadata={"kind": "alert"}))
    def work() -> None: ...

    work.enqueue()
    drain(app, queues=["default"])
    (info,) = app.runs(metadata={"kind": "alert"})
    assert (info.task, info.queue, info.priority, info.tags, info.state) == ("first", "alerts", 5, ("alert",), "ready")
    drain(app)
    assert told == ["first"]


def test_remote_tasks_are_hooks_too(app):
    @app.task(name="work", on_end=app.remote("far.away", queue="far"))
    def work() -> None: ...

    run = work.enqueue()
    drain(app)
    (info,) = app.runs(task="far.away")
    assert info.args["*"][0]["id"] == str(run.id)


def test_corrupt_hooks_do_not_keep_a_run_from_ending(app, hooked):
    run = hooked.work.enqueue()
    fetch(app, 'update {}runs set options = \'{"hooks": {"on_end": 3}}\'')
    drain(app)
    assert (state(run), hooked.told()) == ("done", {})


def test_hooks_that_do_not_fit_are_refused(app):
    @app.task(name="nothing")
    def nothing() -> None: ...

    @app.task(name="hook")
    def hook(end: RunEnd) -> None: ...

    def declare(**settings: object) -> None:
        app.task(name="work", **settings)(lambda: None)

    with pytest.raises(ConfigError, match="task work: on_end must be a task or a list of tasks, not function"):
        declare(on_end=lambda end: None)
    with pytest.raises(ConfigError, match="task nothing must accept a RunEnd as its only argument"):
        declare(on_success=nothing)
    with pytest.raises(ConfigError, match="can't have the option unique"):
        declare(on_failure=hook.options(unique="u"))
    with pytest.raises(ConfigError, match="defaults must be a TaskDefaults, not dict"):
        declare(defaults={"queue": "q"})
    with pytest.raises(ConfigError, match="TaskDefaults: unknown setting 'colour'"):
        TaskDefaults(colour="red")


def test_settings_of_a_task_take_precedence_over_shared_ones(app):
    billing = TaskDefaults(queue="billing", priority=3)

    @app.task(name="charge", defaults=billing, priority=7)
    def charge() -> None: ...

    info = charge.enqueue().info()
    assert (info.queue, info.priority) == ("billing", 7)
