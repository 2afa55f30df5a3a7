"""`run.update`: change a run that hasn't started."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Graph, Retry, RunStarted
from holdfast.control import Control
from holdfast.errors import BadArguments, ConfigError, CostExceedsLimit, GraphError, RunFinished

START = datetime.fromtimestamp(1_800_000_000, UTC)


@pytest.fixture
def note(timed_app, ledger):
    @timed_app.task(name="note")
    def note(text: str) -> str:
        ledger.write(text)
        return text

    return note


def test_a_run_that_has_not_started_is_changed(timed_app, clock, note, ledger):
    first, _, third = (note.enqueue(text) for text in ("a", "b", "c"))
    first.update(run_at=START + timedelta(seconds=60))
    third.update(priority=5, args=("changed",), tags=["urgent"], by="ada")
    assert timed_app.worker(concurrency=1).drain(timeout=60) == 2
    assert ledger.lines() == ["changed", "b"]
    assert third.result() == "changed"
    assert (third.info().tags, third.info().priority) == (("urgent",), 5)
    (entry,) = [entry for entry in third.history() if entry.kind == "updated"]
    assert entry.data == {"by": "ada", "changed": ["priority", "args", "tags"]}
    assert first.info().state == "scheduled"
    first.update(run_at=START)
    assert timed_app.worker().drain(timeout=60) == 1


def test_a_started_run_keeps_all_but_the_time_of_its_retry(timed_app, clock):
    @timed_app.task(name="flaky", retry=Retry(max_attempts=2, delay=3600, max_delay=3600))
    def flaky() -> None:
        raise ValueError

    run = flaky.enqueue()
    timed_app.worker().drain(timeout=60)
    assert run.info().state == "scheduled"
    with pytest.raises(RunStarted, match="only the time of a scheduled retry"):
        run.update(priority=5)
    run.update(run_at=START)
    timed_app.worker().drain(timeout=60)
    with pytest.raises(RunFinished):
        run.update(run_at=START)


def test_wrong_changes_are_refused(timed_app, note):
    run = note.enqueue("a")
    with pytest.raises(ConfigError, match="pass priority=, run_at=, args= or tags="):
        run.update()
    with pytest.raises(BadArguments):
        run.update(args=(1,))
    with pytest.raises(ConfigError, match="priority"):
        run.update(priority="high")
    timed_app.limit("few", concurrency=1)
    limited = note.options(limits=["few"]).enqueue("a")
    with pytest.raises(ConfigError, match=r"has limits, .* call run\.update in the application"):
        Control(timed_app.store).runs.update(limited.id, args=["b"])
    g = Graph("pair")
    first = g.add(note, "a", name="first")
    g.add(note, first.output, name="second")
    graph = timed_app.submit(g)
    with pytest.raises(GraphError, match="change its nodes instead"):
        graph.update(priority=1)
    with pytest.raises(GraphError, match="is blocked"):
        timed_app.get_run(graph.nodes()["second"].id).update(args=("b",))


def test_other_arguments_have_other_limits(timed_app, clock):
    app = timed_app
    app.limit("key", concurrency=1, by="key")
    app.limit("tokens", rate="100/min", cost="cost")
    ran: list[str] = []

    @app.task(name="work", limits=["key", "tokens"])
    def work(key: str, cost: int) -> None:
        ran.append(key)

    app.store.sessions.open("s", "w", 60_000_000, "{}")
    first, second = work.enqueue("a", 90), work.enqueue("a", 60)
    claims = app.store.claims.claim_limited("s", list(app.store.lanes.refresh()), 2)
    assert [claim.id for claim in claims] == [str(first.id)]
    with pytest.raises(CostExceedsLimit):
        second.update(args=("b", 101))
    second.update(args=("b", 10))
    with app.worker():
        second.result(timeout=30)  # its key is free and its cost fits
    assert ran == ["b"]
    counters = {(each.name, each.key): each.started for each in app.store.limits.counters()}
    assert counters["tokens", ""] == 100
    (entry,) = [entry for entry in second.history() if entry.kind == "updated"]
    assert entry.data == {"changed": ["args"]}


def test_the_awaitable_form_does_the_same(app):
    @app.task(name="job")
    async def job() -> None: ...

    async def use() -> int:
        run = await job.aenqueue()
        await run.aupdate(priority=7)
        return (await run.ainfo()).priority

    assert asyncio.run(use()) == 7
