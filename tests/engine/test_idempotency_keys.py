"""Idempotency keys compare task, arguments and tenant, but not options."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Context, Graph, Holdfast, KeyConflict, Retry, RunNotFound
from holdfast.task.graph_compiler import compile_graph, graph_digests
from tests.support.durable import drain
from tests.support.history_queries import fetch

LATER = datetime(2030, 1, 1, tzinfo=UTC)
OPTIONS = {
    "run_at": LATER,
    "delay": 3600,
    "tags": ["import"],
    "priority": 7,
    "queue": "other",
    "retry": Retry(max_attempts=9),
    "timeout": 5,
    "deadline": 5,
    "limits": ["slots"],
}


@pytest.fixture
def mail(app: Holdfast):
    @app.task(name="mail")
    async def mail(to: str, subject: str = "hi") -> str:
        return to

    app.limit("slots", concurrency=1)
    return mail


@pytest.mark.parametrize("keep_keys", [None, timedelta(days=90)])
def test_keys_expire_if_the_app_says_so(make_app, clock, keep_keys):
    app = make_app(clock=clock, keep_keys=keep_keys)

    @app.task(name="mail")
    async def mail(to: str) -> str:
        return to

    first = mail.options(key="k").enqueue("ada")
    drain(app)
    clock.forward(91 * 86_400)
    pruner = app.worker()._components.pruner
    pruner.tick()
    again = mail.options(key="k").enqueue("ada")
    assert (again == first) is (keep_keys is None)
    assert again.created is (keep_keys is not None)
    if keep_keys is None:  # the key outlives the run
        with pytest.raises(RunNotFound, match="keys are kept longer than runs"):
            again.info()
        with pytest.raises(RunNotFound, match="has been pruned"):
            asyncio.run(again.aresult(timeout=5))
    drain(app)
    assert again == mail.options(key="k").enqueue("ada")


@pytest.mark.parametrize("option", OPTIONS)
def test_the_same_request_with_another_option_gives_the_existing_run(app, mail, option):
    run = mail.options(key="k").enqueue("ada")
    assert mail.options(key="k", **{option: OPTIONS[option]}).enqueue("ada") == run
    assert len(app.runs()) == 1


def test_the_same_request_an_hour_later_gives_the_existing_run(app, mail):
    run = mail.options(key="k", run_at=LATER, tags=["a"]).enqueue("ada")
    assert mail.options(key="k", run_at=LATER + timedelta(hours=1), tags=["b"]).enqueue("ada") == run
    assert mail.options(key="k", delay=60).enqueue("ada") == run
    assert mail.options(key="k").enqueue("ada") == run
    assert asyncio.run(mail.options(key="k", delay=61).aenqueue("ada")) == run
    assert run.info().tags == ("a",)


def test_other_arguments_are_a_conflict_whatever_the_options(mail):
    run = mail.options(key="k", run_at=LATER).enqueue("ada")
    for options in ({}, {"run_at": LATER}, {"tags": ["a"]}):
        with pytest.raises(KeyConflict, match="or the same arguments") as caught:
            mail.options(key="k", **options).enqueue("bob")
        assert caught.value.run_id == run.id


def test_another_tenant_has_keys_of_its_own(mail):
    assert mail.options(key="k").enqueue("ada") != mail.options(key="k", tenant="acme").enqueue("ada")


def test_a_batch_compares_arguments_only(app, mail):
    first, second = app.enqueue_many(
        [mail.options(key="k", delay=1).request("ada"), mail.options(key="k", delay=2).request("ada")]
    )
    assert first == second
    assert (first.created, second.created) == (True, False)
    with pytest.raises(KeyConflict):
        app.enqueue_many([mail.options(key="k").request("ada"), mail.options(key="k").request("bob")])


def test_a_durable_function_may_enqueue_with_a_key_that_was_used_with_other_options(app, mail, ledger):
    run = mail.options(key="k", run_at=LATER).enqueue("ada")

    @app.task(name="function", retry=Retry(max_attempts=1))
    async def function(ctx: Context) -> str:
        found = await ctx.enqueue(mail.options(key="k", delay=60), "ada")
        new = await ctx.enqueue(mail.options(key="other"), "ada")
        ledger.write(found.id == run.id, found.created, new.created)
        await ctx.wait_for("go")
        return str(found.id)

    made = function.enqueue()
    drain(app)
    app.emit("go")
    drain(app)
    assert made.result(timeout=5) == str(run.id)
    assert ledger.lines() == ["True False True"] * 2, "the same live and in a replay"


# Keys that 0.1 stored: its digests included the options. A key is kept forever.

OLD_DIGEST = "1:ffcfcf90265f9fb63ea38a60b0eaa7b49b816ff68e97f2f6a8466648b1579467"
OLD_GRAPH_DIGEST = "1:bfd4ef618316ab9546a1d31dbc780b594ed60aa1f0d8e60e648a13f3eebde545"


def store_digest(app: Holdfast, digest: str) -> None:
    """Replace the digest of all keys by one of 0.1."""
    fetch(app, f"update {{}}keys set digest = '{digest}' returning digest")
    assert fetch(app, "select distinct digest from {}keys") == [(digest,)]


def test_a_key_of_0_1_accepts_the_request_that_it_was_stored_for(app, mail):
    asked = mail.options(key="k", priority=1, delay=5, tags=["a", "b"], retry=Retry(max_attempts=2))
    run = asked.enqueue("ada")
    store_digest(app, OLD_DIGEST)
    assert asked.enqueue("ada") == run
    with pytest.raises(KeyConflict):
        asked.enqueue("bob")


def graph(mail, to: str, **options) -> Graph:
    made = Graph("newsletter", key="k")
    part = Graph("part")
    part.add(mail.options(**options), to, name="inner")
    made.add(mail.options(**options), to, name="a")
    made.add(part, name="part", after=["a"])
    return made


def test_a_graphs_key_of_0_1_accepts_the_graph_that_it_was_stored_for(app, mail):
    options = {"priority": 1, "delay": 5}
    run = app.submit(graph(mail, "ada", **options))
    again = app.submit(graph(mail, "ada"))
    assert (again == run, run.created, again.created) == (True, True, False)
    store_digest(app, OLD_GRAPH_DIGEST)
    assert app.submit(graph(mail, "ada", **options)) == run
    with pytest.raises(KeyConflict):
        app.submit(graph(mail, "bob", **options))


def test_a_graph_without_options_has_the_digest_of_0_1(mail):
    assert graph_digests(compile_graph(graph(mail, "ada")), None)[1] is None


def test_appending_the_same_nodes_with_other_options_appends_nothing(app, mail):
    grown = Graph("g")
    grown.gate("gate")
    run = app.submit(grown)
    for options in ({}, {"delay": 5}, {"tags": ["t"]}):
        more = Graph("more")
        more.add(mail.options(**options), "ada", name="x")
        run.append(more, key="1")
    assert set(run.nodes()) == {"gate", "x"}
    other = Graph("more")
    other.add(mail, "bob", name="x")
    with pytest.raises(KeyConflict):
        run.append(other, key="1")
