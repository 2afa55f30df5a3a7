"""What `RunInfo.crashes` counts: deaths that a run was charged with since its last transition, restart or retry."""

from __future__ import annotations

import pytest

from holdfast import Context, Done, Graph, State
from holdfast.engine.attempt import crash_error
from holdfast.model.failure import error_to_json


class First(State):
    async def run(self, ctx: Context) -> Second:
        return Second()


class Second(State):
    async def run(self, ctx: Context) -> Done[str]:
        return Done("done")


@pytest.fixture
def ways(timed_app):
    """The ways to write work: for each a function that enqueues it."""

    @timed_app.task(name="job")
    def job() -> str:
        return "done"

    @timed_app.task(name="function")
    async def function(ctx: Context) -> str:
        return str(await ctx.step(job, name="job"))

    def graph():
        graph = Graph("graph")
        graph.add(job, name="node")
        return timed_app.submit(graph)

    machine = timed_app.machine("machine", First, Second)
    return {
        "job": job.enqueue,
        "function": function.enqueue,
        "graph": graph,
        "machine": lambda: machine.enqueue(First()),
    }


def kill(app, clock, runs):
    """Claim this many runs in a process, and recover them after its death."""
    sessions = app.store.sessions
    sessions.open("killed", "killed", 1_000_000, "{}")
    assert len(app.store.claims.claim("killed", app.store.lanes.refresh(), 10)) == runs
    clock.forward(1)
    sessions.recover(sessions.find_dead(), error_to_json(crash_error()))


@pytest.mark.parametrize(
    ("way", "killed", "done"),
    [("job", {"job": 1}, {"job": 1}), ("function", {"function": 1}, {"function": 1}),
     ("graph", {"graph": 0, "job": 1}, {"graph": 0, "job": 1}), ("machine", {"machine": 1}, {"machine": 0})],
)  # fmt: skip
def test_the_death_of_its_worker_is_charged_to_a_run_that_was_alone(timed_app, clock, ways, way, killed, done):
    run = ways[way]()
    kill(timed_app, clock, 1)
    assert {info.task: info.crashes for info in timed_app.runs()} == killed
    timed_app.worker().drain()
    assert run.info().state == "done"
    assert {info.task: info.crashes for info in timed_app.runs()} == done


def test_the_death_of_a_worker_with_several_runs_is_charged_to_none(timed_app, clock, ways):
    runs = [ways[way]() for way in ("job", "function", "machine")]
    kill(timed_app, clock, 3)
    assert [run.info().crashes for run in runs] == [0, 0, 0]
    assert [[entry.kind for entry in run.history()][-1] for run in runs] == ["worker_lost"] * 3
