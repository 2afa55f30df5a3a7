"""Why a run isn't running: each reason with its code, text and data."""

from __future__ import annotations

import json

import pytest

from holdfast import Context, Graph, Holdfast, Retry
from holdfast.control import Control
from holdfast.errors import ConfigError, RunNotFound
from holdfast.model.access import AccessScope
from holdfast.model.clock import to_datetime
from holdfast.model.ids import new_id
from holdfast.policy.admission import Rate
from holdfast.store.limits import counter_key, encode_permits
from tests.processes import tasks
from tests.support.durable import drain
from tests.support.store_harness import CANCELLED, SECOND
from tests.support.wait_until import wait_until

ONE = json.dumps([counter_key("one", '"acme"')])


def why(control, id):
    (reason,) = control.whys.why(control.runs.find(str(id))).reasons
    return reason


def open_worker(harness, name, **info):
    harness.store.sessions.open(f"{name}:1", name, 60 * SECOND, json.dumps(info))


# Ready


def test_no_worker_is_running(control, harness):
    assert (why(control, harness.add()).code, why(control, harness.add()).text) == (
        "no_worker",
        "no worker is running; start one with `holdfast worker`",
    )


def test_unserved_queue_names_running_workers(control, harness):
    open_worker(harness, "mailer", queues=["mail"])
    reason = why(control, harness.add())
    assert reason.code == "no_queue"
    assert reason.text == "no worker serves queue default; running: worker mailer"
    assert reason.data == {"queue": "default", "workers": ["mailer"]}


def test_unknown_task_names_running_workers(control, harness):
    for name in ("ada", "bob"):
        open_worker(harness, name, tasks=["other"])
    open_worker(harness, "mailer", queues=["mail"], tasks=["task"])
    reason = why(control, harness.add())
    assert reason.code == "unknown_task"
    assert reason.text == "no worker has the code of task task; running: workers ada, bob"
    assert reason.data == {"task": "task", "workers": ["ada", "bob"]}


def test_a_real_worker_that_doesnt_know_the_task_is_named(database_url):
    with Holdfast(database_url) as app:
        app.task(name="known")(lambda: None)
        run = app.remote("unheard-of").enqueue()
        control = Control(app.store)
        with app.worker():
            reason = why(control, run.id)
            (alive,) = control.workers.list()
    assert reason.code == "unknown_task"
    assert reason.data["workers"] == [alive.name]


def test_a_run_is_left_to_a_worker_with_the_preferred_labels_for_a_second(control, harness):
    prefers = {"task": {"region": "eu"}}
    open_worker(harness, "ada", labels={"region": "eu"}, prefers=prefers)
    run = harness.add()
    assert why(control, run).code == "next", "there is no other worker"
    open_worker(harness, "bob", labels={"region": "us"}, prefers=prefers)
    reason = why(control, run)
    assert reason.code == "preferred"
    assert reason.text == (
        "left to worker ada with the labels that task task prefers, region=eu; worker bob may claim it once it has been"
        " ready for 1 s"
    )
    assert reason.data == {"prefers": {"region": "eu"}, "workers": ["ada"], "others": ["bob"]}
    harness.clock.advance(0.999)
    assert why(control, run).code == "preferred"
    harness.clock.advance(0.001)
    assert why(control, run).text == "ready to be claimed by workers ada, bob"


@pytest.mark.parametrize(
    ("name", "info"),
    [
        ("bob", {"labels": {}}),  # of a release that doesn't know preferences, so it claims at once
        ("bob", {"labels": {}, "prefers": {"task": {"region": "no"}}, "queues": ["mail"]}),
    ],
)
def test_a_run_is_not_left_if_another_worker_claims_it_or_never_can(control, harness, name, info):
    open_worker(harness, "ada", labels={"region": "eu"}, prefers={"task": {"region": "eu"}})
    open_worker(harness, name, **info)
    assert why(control, harness.add()).code == "next"


def test_every_slot_is_taken(control, harness):
    open_worker(harness, "ada", concurrency=1)
    first, second = harness.add(), harness.add()
    assert why(control, second).code == "next"
    harness.claim("ada:1")
    assert why(control, second).text == "all slots of worker ada are in use"
    assert why(control, second).code == "busy"
    assert why(control, first).code == "running"


@pytest.mark.parametrize(("kind", "text"), [("thread", "threads"), ("process", "process slots")])
def test_every_thread_or_process_slot_is_taken_though_other_slots_are_free(control, harness, kind, text):
    open_worker(harness, "ada", concurrency=10, **{f"{kind}_slots": 1, f"{kind}_tasks": ["task", "report"]})
    harness.add()
    second, plain = harness.add(), harness.add(task="plain")
    assert why(control, second).code == "next"
    harness.claim("ada:1", tasks=("task", "plain"))
    reason = why(control, second)
    assert (reason.code, reason.text) == ("busy", f"all {text} of worker ada are in use")
    assert reason.data == {"workers": ["ada"], "thread": kind == "thread", "process": kind == "process"}
    assert why(control, plain).code == "next", "it needs none"


def test_one_worker_has_no_slot_and_another_no_process_slot(control, harness):
    open_worker(harness, "ada", concurrency=1)
    harness.add()
    harness.claim("ada:1")
    open_worker(harness, "bob", concurrency=9, process_slots=1, process_tasks=["task"])
    harness.add()
    harness.claim("bob:1")
    assert why(control, harness.add()).text == "all slots of worker ada and all process slots of worker bob are in use"


def test_a_real_worker_with_full_process_slots(database_url, tmp_path):
    with Holdfast(database_url) as app:
        wait_for_ever = app.task(name="wait_for_ever", run_in="process")(tasks.wait_for_ever)
        worker = app.worker(grace=0)
        worker._components.runner.process_slots = 1
        runs = [wait_for_ever.enqueue(str(tmp_path / "mark")) for _ in range(2)]
        control = Control(app.store)
        with worker:
            wait_until(lambda: worker._components.runner.busy_slots == 1)
            [waiting] = [run for run in runs if run.info().state == "ready"]
            reason = why(control, waiting.id)
    assert reason.code == "busy"
    assert reason.text.startswith("all process slots of worker ")


def test_ready_run_names_eligible_workers(control, harness):
    open_worker(harness, "ada", tasks=["task"], concurrency=1)
    reason = why(control, harness.add())
    assert (reason.code, reason.text) == ("next", "ready to be claimed by worker ada")


def test_expired_worker_does_not_count(control, harness):
    open_worker(harness, "ada")
    harness.clock.advance(61)
    assert why(control, harness.add()).code == "no_worker"


def test_a_paused_queue(control, harness):
    run = harness.add()
    control.queues.pause(["default"])
    reason = why(control, run)
    assert (reason.code, reason.data) == ("paused", {"queue": "default"})
    assert (reason.text, reason.command) == ("queue default is paused", "holdfast resume default")


def limited(harness, count=2, **more):
    harness.session("w")
    harness.store.limits.declare([("one", 1, None)])
    runs = [harness.add(limits=ONE, **more) for _ in range(count)]
    return runs, harness.store.claims.claim_limited("w", [harness.lane()], 8)


def test_full_limit_names_its_holders(control, harness):
    (first, second), _ = limited(harness)
    reason = why(control, second)
    assert reason.code == "limit"
    assert reason.text == f'limit one for "acme" is full: its only permit is held by {first}'
    holders = [{"run": first, "task": "task", "worker": "w"}]
    assert reason.data == {"limit": "one", "key": "acme", "holders": holders}
    assert control.runs.details(control.runs.find(second)).full_limit == 'one for "acme"'
    assert control.runs.details(control.runs.find(first)).full_limit is None


def test_holders_of_other_tenants_are_not_named(control, harness):
    (first, second), _ = limited(harness, tenant="other")
    id = control.runs.find(second)
    (own,) = control.whys.why(id, AccessScope(tenant="other")).reasons
    assert [holder["run"] for holder in own.data["holders"]] == [first]
    (told,) = control.whys.why(id, AccessScope(tenant="acme")).reasons
    assert told.data["holders"] == []
    assert first not in told.text
    assert "held by other runs" in told.text


def test_a_full_rate(control, harness):
    harness.session("w")
    app_limits = json.dumps([counter_key("slow", "")])
    harness.store.limits.declare([("slow", None, Rate(1, 2 * SECOND))])
    _, second = harness.add(limits=app_limits), harness.add(limits=app_limits)
    harness.store.claims.claim_limited("w", [harness.lane()], 8)
    assert why(control, second).text == "limit slow is full: 1 of 1 start used in the last 2 s"


def test_a_full_limit_in_a_paused_queue_has_both_reasons(control, harness):
    (_, second), _ = limited(harness)
    control.queues.pause(["default"])
    found = control.whys.why(control.runs.find(second))
    assert [reason.code for reason in found.reasons] == ["limit", "paused"]


def test_unreleased_run_names_its_worker(control, harness):
    harness.session("w")
    claim = harness.running("w")
    harness.end("w", claim, "timed_out", still_running=1, state="ready")
    reason = why(control, claim.id)
    assert (reason.code, reason.text) == ("quiescing", "worker w hasn't released it yet")


# At work, over, or due later


def test_running_run_names_its_worker(control, harness):
    open_worker(harness, "ada")
    claim = harness.running("ada:1")
    reason = why(control, claim.id)
    assert reason.code == "running"
    assert reason.text.startswith("attempt 1 has been running on worker ada since 2027-01-15 08:00:00 UTC")
    harness.clock.advance(61)
    assert why(control, claim.id).text.endswith(
        "its lease has expired and no worker is running to recover the run; start one with `holdfast worker`"
    )
    open_worker(harness, "bob")
    assert why(control, claim.id).text.endswith("its lease has expired, another worker will recover the run")


def test_finished_run_is_explained(control, harness):
    run = harness.add()
    harness.store.actions.cancel(run, CANCELLED)
    reason = why(control, run)
    assert (reason.code, reason.data["state"]) == ("ended", "cancelled")


def test_scheduled_and_retrying_runs_are_explained(control, harness):
    harness.session("w")
    assert why(control, harness.add(delay=SECOND)).code == "time"
    claim = harness.running("w")
    harness.end("w", claim, "retrying")
    reason = why(control, claim.id)
    assert reason.code == "retry"
    assert reason.text.startswith("attempt 1 failed")


def test_waits_are_explained(database_url):
    with Holdfast(database_url) as app:

        @app.task(name="wait")
        async def wait(ctx: Context, kind: str) -> None:
            if kind == "sleep":
                await ctx.sleep(3600, name="tide")
            elif kind == "event":
                await ctx.wait_for("paid", timeout=3600)
            else:
                await ctx.receive("orders")

        runs = {kind: wait.enqueue(kind).id for kind in ("sleep", "event", "message")}
        drain(app)
        found = {kind: why(Control(app.store), id) for kind, id in runs.items()}
    assert {kind: reason.code for kind, reason in found.items()} == {kind: kind for kind in runs}
    assert found["sleep"].text.startswith("sleeping (tide), until 20")
    assert found["event"].text.startswith("waiting for event paid, until 20")
    assert found["message"].text == "waiting for a message on topic orders"


# Families


def test_children_that_a_run_waits_for_and_those_that_wait_for_their_siblings(database_url):
    with Holdfast(database_url) as app:
        control = Control(app.store)

        @app.task(name="child", queue="elsewhere")
        async def child(number: int) -> None: ...

        @app.task(name="parent")
        async def parent(ctx: Context) -> None:
            await ctx.map(child, [1, 2, 3], concurrency=1)

        run = parent.enqueue()
        drain(app, queues=["default"])
        reason = why(control, run.id)
        assert (reason.code, reason.data["pending"]) == ("children", 3)
        states = {each.state: each.id for each in app.runs(task="child")}
        blocked = why(control, states["blocked"])
        assert (blocked.code, blocked.data) == ("concurrency", {"parent": str(run.id)})


def test_nodes_and_gates(database_url):
    with Holdfast(database_url) as app:
        control = Control(app.store)

        @app.task(name="work", retry=Retry(max_attempts=1))
        async def work() -> None: ...

        graph = Graph("g")
        first = graph.add(work, name="first")
        gate = graph.gate("approve", after=[first])
        graph.add(work, name="last", after=[gate])
        run = app.submit(graph)
        nodes = {node.node: node.id for node in app.store.queries.nodes(str(run.id))}
        reason = why(control, run.id)
        assert (reason.code, reason.data) == ("no_worker", {"node": "first", "run": nodes["first"]})
        assert reason.text.startswith(f"node first ({nodes['first']}): ")
        assert why(control, nodes["last"]).data == {"nodes": {"approve": "blocked"}}
        assert why(control, nodes["approve"]).code == "nodes"
        drain(app)
        gate = why(control, run.id)
        assert (gate.code, gate.data.pop("since") > run.info().created_at) == ("gate", True)
        assert gate.data == {"graph": str(run.id), "gate": "approve", "id": nodes["approve"]}
        assert why(control, nodes["approve"]).command == f"holdfast gate {run.id} approve complete"
        assert "approve (waiting)" in why(control, nodes["last"]).text


def test_failed_nodes_and_unfinished_children_are_named_with_their_ids(database_url):
    with Holdfast(database_url) as app:
        control = Control(app.store)

        @app.task(name="work", retry=Retry(max_attempts=1))
        async def work(ctx: Context, n: int) -> int:
            if n == 13:
                raise ValueError(n)
            return await ctx.wait_for(f"go {n}") if n > 100 else n

        @app.task(name="parent")
        async def parent(ctx: Context, numbers: list[int]) -> list[int]:
            return await ctx.map(work, numbers, concurrency=6)

        graph = Graph("g")
        for n in range(12, 15):
            graph.add(work, n, name=f"n{n}")
        failed = app.submit(graph)
        one, many = parent.enqueue([1, 101]), parent.enqueue(list(range(101, 110)))
        drain(app)
        ended, nodes = control.whys.why(failed.id).reasons
        bad = str(failed.nodes()["n13"].id)
        assert (ended.code, nodes.text, nodes.data["runs"]) == ("ended", f"node n13 ({bad}) failed", {"n13": bad})
        (child,) = [run.id for run in app.runs(task="work", state="waiting") if run.parent == one.id]
        reason = why(control, one.id)
        assert reason.text == f"waiting for 1 child (work): {child} (waiting)"
        assert reason.data["children"] == [{"run": str(child), "task": "work", "state": "waiting"}]
        reason = why(control, many.id)
        assert reason.text.startswith("waiting for 9 children (work): ")
        assert reason.text.endswith(" and 4 more")
        held = next(run for run in control.runs.details(many.id).children if run.state == "blocked")
        assert why(control, held.id).text == f"the map of its parent, run {many.id}, has reached its concurrency limit"
        scoped = control.whys.why(one.id, AccessScope(tenant="acme")).reasons[0]
        assert "children" not in scoped.data
        above = control.runs.ancestors(child)
        assert [(each.id, each.name) for each in above] == [(one.id, "parent")]


def test_missing_run_is_not_found(control, harness):
    harness.store.prepare()
    with pytest.raises(RunNotFound):
        control.whys.why(new_id())


# Limits


def test_limits_tell_what_is_in_use_and_who_waits(control, harness):
    limited(harness, 3)
    (limit,) = control.limits.list()
    (counter,) = limit.counters
    assert (limit.name, limit.concurrency, limit.rate, limit.period) == ("one", 1, None, None)
    assert (counter.key, counter.used, counter.parked) == ("acme", 1, 2)


def test_a_limit_names_the_runs_and_steps_that_hold_its_permits(control, harness):
    (run, _), (claim,) = limited(harness)
    harness.store.limits.declare([("tokens", 9, None, True)])
    harness.add("other")
    (other,) = harness.claim("w", 1, ["other"])
    harness.sql(
        "insert into {schema}step_permits (run, key, fence, limits, taken_at)"
        " values (cast(:run as {uuid}), 'call-x#2', 1, :limits, :now)",
        run=other.id, limits=encode_permits([("one", "25", None), ("tokens", "", 3)]), now=harness.clock(),
    )  # fmt: skip
    (limit,) = control.limits.list("one")
    told = [(str(each.run), each.task, each.key, each.step, each.worker, each.cost) for each in limit.holders]
    assert sorted(told, key=str) == sorted(
        [(run, "task", "acme", None, "w", 1), (other.id, "other", 25, "call-x #2", "w", 1)], key=str
    )
    assert {each.since for each in limit.holders} == {to_datetime(harness.clock())}
    (tokens,) = control.limits.list("tokens")
    assert [(str(each.run), each.cost) for each in tokens.holders] == [(other.id, 3)]
    assert control.limits.list()[0].holders is None, "lists don't read them"
    harness.end("w", claim)
    assert [str(each.run) for each in control.limits.list("one")[0].holders] == [other.id]


def test_unknown_limit_lists_known_limits(control, harness):
    limited(harness)
    with pytest.raises(ConfigError, match="limit 'two' does not exist; known limits: one"):
        control.limits.list("two")
