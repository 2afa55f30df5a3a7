"""Spans of enqueues, attempts, steps, claims and commits."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from uuid import UUID

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode

from holdfast import Context, Graph, Holdfast, Retry, SyncContext
from holdfast.control import Control
from holdfast.errors import ConfigError, KeyConflict
from tests.support.durable import drain
from tests.support.spans import child_of, links_to

tracer = trace.get_tracer("tests")


def double(number: int) -> int:
    return number * 2


async def refuse(secret: str) -> None:
    raise ValueError(secret)


@pytest.fixture
def job(app):
    @app.task(name="job")
    async def job() -> None: ...

    return job


def test_an_attempt_is_a_child_span_of_its_enqueue(app, job, spans):
    with tracer.start_as_current_span("request") as request:
        run = job.options(tenant="acme", queue="mail").enqueue()
    drain(app)
    enqueue, attempt = spans.one("enqueue job"), spans.one("job")
    assert child_of(enqueue, request)
    assert child_of(attempt, enqueue)
    told = dict(attempt.attributes)
    assert told.pop("holdfast.worker") == told.pop("messaging.client.id") == run.history()[-1].worker
    assert told == {
        "holdfast.run": str(run.id), "holdfast.task": "job", "holdfast.queue": "mail", "holdfast.attempt": 1,
        "holdfast.tenant": "acme", "holdfast.outcome": "done",
        "messaging.system": "holdfast", "messaging.operation.name": "run", "messaging.operation.type": "process",
        "messaging.destination.name": "mail", "messaging.message.id": str(run.id),
    }  # fmt: skip
    assert dict(enqueue.attributes) == {
        "holdfast.run": str(run.id), "holdfast.task": "job", "holdfast.runs": 1,
        "messaging.system": "holdfast", "messaging.operation.name": "enqueue", "messaging.operation.type": "send",
        "messaging.destination.name": "mail", "messaging.message.id": str(run.id),
    }  # fmt: skip


def test_the_span_of_a_batch_counts_its_runs(app, job, spans):
    job.enqueue_many([(), ()])
    drain(app)
    enqueue, claim = spans.one("enqueue job"), spans.named("claim")[0]
    for span, operation in ((enqueue, "send"), (claim, "receive")):
        assert span.attributes["messaging.batch.message_count"] == span.attributes["holdfast.runs"] > 0
        assert span.attributes["messaging.operation.type"] == operation
        assert "messaging.message.id" not in span.attributes


def test_a_rejected_enqueue_has_the_error_type_only(app, spans):
    @app.task(name="charge")
    async def charge(card: str) -> None: ...

    charge.options(key="once").enqueue("swordfish")
    spans.clear()
    with pytest.raises(KeyConflict):
        charge.options(key="once").enqueue("another swordfish")
    (span,) = spans.named("enqueue charge")
    assert span.attributes["error.type"] == span.status.description == "KeyConflict"
    assert span.status.status_code is StatusCode.ERROR
    assert "swordfish" not in span.to_json()


async def test_aenqueue_is_traced(app, job, spans):
    await job.aenqueue()
    await app.worker().adrain(timeout=60)
    assert child_of(spans.one("job"), spans.one("enqueue job"))


def test_claims_and_commits_link_to_the_runs_that_they_serve(app, job, spans):
    runs = [job.enqueue() for _ in range(3)]
    drain(app)
    attempts = spans.named("job")
    assert len(attempts) == len(runs)
    for attempt in attempts:
        assert [links_to(attempt, claim) for claim in spans.named("claim")].count(True) == 1
        assert [links_to(commit, attempt) for commit in spans.named("commit")].count(True) == 1
    assert sum(claim.attributes["holdfast.runs"] for claim in spans.named("claim")) == len(runs)
    assert sum(commit.attributes["holdfast.commands"] for commit in spans.named("commit")) == len(runs)


def test_a_run_enqueued_outside_a_trace_uses_its_id_as_trace_id(make_app, app, job, spans):
    silent = make_app()
    run = silent.remote("job").enqueue()
    drain(app)
    attempt = spans.one("job")
    assert attempt.context.trace_id == UUID(str(run.id)).int
    assert links_to(attempt, spans.one("claim"))


def test_the_sampler_decides_on_runs_with_their_own_trace(make_app, app, job, spans, monkeypatch):
    provider = SimpleNamespace(sampler=ALWAYS_OFF)
    monkeypatch.setattr("holdfast.telemetry.otel.trace.get_tracer_provider", lambda: provider)
    make_app().remote("job").enqueue()
    drain(app)
    assert spans.named("job") == []


def test_each_attempt_is_a_span_with_the_error_type_only(app, spans):
    @app.task(name="fails", retry=Retry(max_attempts=2, delay=0))
    async def fails() -> None:
        raise ValueError("the password is swordfish")

    fails.enqueue()
    drain(app)
    tries = spans.named("fails")
    assert [span.attributes["holdfast.outcome"] for span in tries] == ["retrying", "failed"]
    assert [span.attributes["holdfast.attempt"] for span in tries] == [1, 2]
    assert {span.status.status_code for span in tries} == {StatusCode.ERROR}
    assert {span.status.description for span in tries} == {"ValueError"}
    assert {span.attributes["error.type"] for span in tries} == {"ValueError"}
    assert "swordfish" not in "".join(span.to_json() for span in tries)


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
def test_executed_steps_and_transactions_are_spans_and_replayed_ones_are_not(app, spans, plain):
    def insert(connection, number: int) -> int:
        return number

    if plain:

        @app.task(name="steps")
        def steps(ctx: SyncContext) -> None:
            ctx.step(double, 1)
            ctx.transaction(insert, 2)
            ctx.wait_for("go")
            ctx.step(refuse_plainly, "swordfish")
    else:

        @app.task(name="steps")
        async def steps(ctx: Context) -> None:
            await ctx.step(double, 1)
            await ctx.transaction(insert, 2)
            await ctx.wait_for("go")
            await ctx.step(refuse, "swordfish")

    run = steps.options(retry=Retry(max_attempts=1)).enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    assert run.info().state == "failed"
    first, second = spans.named("steps")
    assert child_of(spans.one("step double"), first)
    assert child_of(spans.one("step insert"), first)
    assert spans.one("step insert").attributes["holdfast.outcome"] == "done"
    failed = spans.one("step refuse_plainly" if plain else "step refuse")
    assert child_of(failed, second)
    assert (failed.attributes["holdfast.outcome"], failed.status.description) == ("failed", "ValueError")
    assert failed.attributes["error.type"] == "ValueError"
    assert "error.type" not in spans.one("step insert").attributes


def refuse_plainly(secret: str) -> None:
    raise ValueError(secret)


@pytest.mark.parametrize("plain", [False, True], ids=["async", "plain"])
def test_an_attempt_links_once_to_the_emitter_of_its_event(app, spans, plain):
    if plain:

        @app.task(name="waits")
        def waits(ctx: SyncContext) -> None:
            ctx.wait_for("first")
            ctx.wait_for("second")
    else:

        @app.task(name="waits")
        async def waits(ctx: Context) -> None:
            await ctx.wait_for("first")
            await ctx.wait_for("second")

    @app.task(name="emits")
    async def emits(ctx: Context) -> None:
        await ctx.emit("second")

    waits.enqueue()
    drain(app)
    app.emit("first")
    drain(app)
    emits.enqueue()
    drain(app)
    started, after_first, after_second = spans.named("waits")
    assert not any(links_to(started, other) for other in (spans.one("emit first"), spans.one("emits")))
    assert links_to(after_first, spans.one("emit first"))
    assert links_to(after_second, spans.one("emits"))
    assert not links_to(after_second, spans.one("emit first"))


def test_graph_nodes_belong_to_the_trace_of_submit(app, job, spans):
    graph = Graph("release")
    first = graph.add(job, name="first")
    graph.add(job, after=[first], name="second")
    run = app.submit(graph)
    drain(app)
    submit = spans.one("enqueue release")
    assert [child_of(node, submit) for node in spans.named("job")] == [True, True]
    assert [node.attributes["holdfast.node"] for node in spans.named("job")] == ["first", "second"]
    assert {node.attributes["holdfast.parent"] for node in spans.named("job")} == {str(run.id)}
    assert submit.attributes["holdfast.run"] == str(run.id)
    assert Control(app.store).runs.details(run.nodes()["first"].id).options == {}


def test_idempotency_does_not_depend_on_tracing(make_app, app, job):
    traced = job.options(key="once").enqueue()
    silent = make_app()

    @silent.task(name="job")
    async def same() -> None: ...

    assert same.options(key="once").enqueue().id == traced.id


def test_scheduled_runs_do_not_belong_to_the_trace_of_the_worker_start(timed_app, clock, spans):
    @timed_app.task(name="nightly")
    async def nightly() -> None: ...

    timed_app.schedule("nightly", nightly, every=60)
    with tracer.start_as_current_span("start"):
        drain(timed_app)
        clock.forward(90)
        drain(timed_app)
    (run,) = timed_app.runs()
    assert spans.one("nightly").context.trace_id == UUID(str(run.id)).int


def test_without_telemetry_no_context_is_stored(make_app, spans):
    silent = make_app()

    @silent.task(name="job")
    async def job(ctx: Context) -> int:
        return await ctx.step(double, 1)

    with tracer.start_as_current_span("request"):
        run = job.enqueue()
    drain(silent)
    assert spans.names() == {"request"}
    assert silent.store.queries.details(str(run.id)).options is None


def test_show_names_the_trace(app, job, spans):
    run = job.enqueue()
    details = Control(app.store, app.registry).runs.details(run.id)
    assert details.trace == f"{spans.one('enqueue job').context.trace_id:032x}"
    assert details.options == {}


def test_unknown_backends_are_rejected(sqlite_url, monkeypatch):
    with pytest.raises(ConfigError, match=r"telemetry must be 'otel' or 'prometheus' or both, not 'jaeger'"):
        Holdfast(sqlite_url, telemetry=["otel", "jaeger"])
    monkeypatch.setenv("HOLDFAST_TELEMETRY", "zipkin")
    with pytest.raises(ConfigError, match=r"\$HOLDFAST_TELEMETRY must be .* not 'zipkin'"):
        Holdfast(sqlite_url)
    monkeypatch.setenv("HOLDFAST_TELEMETRY", "otel, prometheus")
    assert len(Holdfast(sqlite_url).telemetry._metric_backends) == 2
    assert not Holdfast(sqlite_url, telemetry=()).telemetry.on


def test_missing_packages_are_reported(sqlite_url, monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    monkeypatch.delitem(sys.modules, "holdfast.telemetry.otel", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'holdfast\[otel\]'"):
        Holdfast(sqlite_url, telemetry="otel")
