"""Reading runs: handles, pages, results, histories; and the blocking and async form of every method."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from uuid import UUID, uuid4

import pytest

from holdfast import ResultTimeout, Retry, RunFailed
from holdfast.errors import BlockingCall, ConfigError, RunNotFound


@pytest.fixture
def work(app):
    @app.task(name="work", retry=Retry(max_attempts=1))
    async def work(x: int) -> int:
        if x < 0:
            raise ValueError("negative")
        return x

    return work


def test_a_run_is_found_by_its_id_in_any_form(app, work):
    run = work.enqueue(1)
    assert run.id.version == 7
    assert app.get_run(run.id) == app.get_run(str(run.id)) == app.get_run(run.id.hex) == run
    assert app.get_run(run.id).task == "work"
    for unknown in (uuid4(), "no id", "", 3):
        with pytest.raises(RunNotFound):
            app.get_run(unknown)


def test_info_contains_all_options_given_at_enqueue(app, work):
    before = datetime.now(UTC)
    run = work.options(queue="q", priority=4, tenant="acme", tags=["a", "b"]).enqueue(5)
    info = run.info()
    assert (info.id, info.task, info.queue, info.priority, info.state) == (run.id, "work", "q", 4, "ready")
    assert (info.tenant, list(info.tags), info.attempt, info.crashes) == ("acme", ["a", "b"], 0, 0)
    assert (info.started_at, info.finished_at, info.result, info.worker, info.final) == (None, None, None, None, False)
    app.worker().drain(timeout=60)
    info = run.info()
    assert (info.state, info.result, info.attempt, info.final) == ("done", 5, 1, True)
    assert abs((info.created_at - before).total_seconds()) < 60
    assert info.created_at <= info.started_at <= info.finished_at


def test_runs_are_listed_newest_first_in_pages_and_filtered(app, work):
    runs = [
        work.options(queue=f"q{n % 2}", tenant="acme" if n == 3 else None, tags=[f"t{n}"]).enqueue(n) for n in range(7)
    ]
    runs[6].cancel()
    assert [info.id for info in app.runs()] == [run.id for run in reversed(runs)]
    seen, after = [], None
    while True:
        page = app.runs(limit=3, after=after)
        seen += [info.id for info in page]
        if (after := page.after) is None:
            break
    assert seen == [run.id for run in reversed(runs)]
    assert [info.id for info in app.runs(state="cancelled")] == [runs[6].id]
    assert len(app.runs(queue="q1")) == 3
    assert [info.id for info in app.runs(tenant="acme")] == [runs[3].id]
    assert [info.id for info in app.runs(tag="t2")] == [runs[2].id]
    assert app.runs(task="other") == []
    for wrong in ({"state": "odd"}, {"limit": 0}, {"limit": 10_000}, {"queue": ""}, {"task": 3}):
        with pytest.raises(ConfigError):
            app.runs(**wrong)


def test_lists_say_that_they_leave_results_out(app, work):
    done, waiting = work.enqueue(1), work.options(delay=60).enqueue(2)
    app.worker().drain(timeout=30)
    assert {info.id: (info.result, info.result_omitted) for info in app.runs()} == {
        done.id: (None, True), waiting.id: (None, False),
    }  # fmt: skip
    assert (done.info().result, done.info().result_omitted) == (done.result(), False)


def test_a_page_may_end_exactly_with_the_last_run(app, work):
    work.enqueue_many([(n,) for n in range(4)])
    page = app.runs(limit=4)
    assert (len(page), page.after) == (4, None)


def test_waiting_for_a_result_can_time_out(app, work):
    run = work.enqueue(1)
    with pytest.raises(ResultTimeout, match=str(run.id)) as late:
        run.result(timeout=0.05)
    assert isinstance(late.value, TimeoutError)
    with pytest.raises(ResultTimeout):
        run.result(timeout=0)
    failed = work.enqueue(-1)
    app.worker().drain(timeout=60)
    assert run.result(timeout=0) == 1
    with pytest.raises(RunFailed, match="negative"):
        failed.result()


async def test_every_awaited_verb_works_on_a_running_loop(app, work):
    run = await work.aenqueue(1)
    more = await work.aenqueue_many([(2,), (-3,)])
    more += await app.aenqueue_many([work.request(4)])
    cancelled = await work.aenqueue(5)
    assert await cancelled.acancel("why not") is True
    await cancelled.aretry()
    with pytest.raises(ResultTimeout):
        await run.aresult(timeout=0.01)
    async with app.worker():
        assert await asyncio.wait_for(run.aresult(), 30) == 1
        assert [await each.aresult(timeout=30) for each in (more[0], more[2], cancelled)] == [2, 4, 5]
        with pytest.raises(RunFailed):
            await more[1].aresult(timeout=30)
    assert (await run.ainfo()).state == "done"
    assert [entry.kind for entry in await run.ahistory()] == ["enqueued", "started", "done"]
    assert (await app.aget_run(str(run.id))) == run
    assert len(await app.aruns()) == 5
    await app.aclose()


async def test_every_blocking_verb_is_rejected_on_a_running_loop_and_names_its_async_form(app, work):
    run = await work.aenqueue(1)
    calls = {
        "ainfo": run.info,
        "aresult": run.result,
        "acancel": run.cancel,
        "aretry": run.retry,
        "ahistory": run.history,
        "aenqueue": lambda: work.enqueue(1),
        "aenqueue_many": lambda: app.enqueue_many([work.request(1)]),
        "aget_run": lambda: app.get_run(run.id),
        "async for chunk in run.astream": run.stream,
        "aemit": lambda: app.emit("event"),
        "aruns": app.runs,
        "aclose": app.close,
        "arun": lambda: app.worker().run(),
        "adrain": lambda: app.worker().drain(),
        "async with": lambda: app.worker().__enter__(),
    }
    for other, call in calls.items():
        with pytest.raises(BlockingCall, match=other):
            call()
    for many in (lambda: work.enqueue_many([(1,)]), lambda: app.enqueue_many([work.request(1)])):
        with pytest.raises(BlockingCall, match="aenqueue_many"):
            many()
    assert len(await app.aruns()) == 1


def test_the_blocking_verbs_work_in_user_code_in_threads(app, work):
    @app.task(name="caller")
    def caller() -> int:
        return work.enqueue(3).result(timeout=30) + len(app.runs())

    run = caller.enqueue()
    app.worker().drain(timeout=60)
    assert run.result(timeout=5) == 5


def test_history_names_the_worker_and_its_times_ascend(app, work):
    run = work.enqueue(-1)
    app.worker().drain(timeout=60)
    history = run.history()
    assert [(entry.kind, entry.attempt) for entry in history] == [("enqueued", 0), ("started", 1), ("failed", 1)]
    assert history[1].worker == history[2].worker != None  # noqa: E711
    assert [entry.at for entry in history] == sorted(entry.at for entry in history)
    assert history[2].data["error"]["message"] == "negative"
    assert history[0].data == {"task": "work", "queue": "default"}


def test_history_shows_the_running_attempt(app):
    seen = []

    @app.task(name="look")
    def look(id: UUID) -> None:
        seen.extend(entry.kind for entry in app.get_run(id).history())

    @app.task(name="self")
    def itself() -> None:
        [info] = app.runs(state="running")
        look.fn(info.id)

    itself.enqueue()
    app.worker().drain(timeout=60)
    assert seen == ["enqueued", "started"]
