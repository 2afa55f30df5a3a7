"""Where runs execute: queues with slots of their own, and workers with labels."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter

import pytest

from holdfast import Batch, Context
from holdfast.control import Control, explainer
from holdfast.engine.attempt import SlotPool
from holdfast.engine.loops import claimer, known_lanes
from holdfast.engine.placement import check_queues
from holdfast.errors import ConfigError
from holdfast.store.module import StoreModule
from holdfast.store.sessions import SessionStore
from tests.processes import tasks as process_tasks
from tests.support.corruption import fetch
from tests.support.wait_until import wait_until


class Gauge:
    """Counts how many functions of each queue run now, and the maximum; they end when `gate` is set."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self._lock = threading.Lock()

    def enter(self, queue: str) -> None:
        with self._lock:
            self.now[queue] += 1
            self.most[queue] = max(self.most[queue], self.now[queue])

    def leave(self, queue: str) -> None:
        with self._lock:
            self.now[queue] -= 1

    def wait(self, queue: str) -> None:
        self.enter(queue)
        self.gate.wait(60)
        self.leave(queue)

    async def await_gate(self, queue: str) -> None:
        self.enter(queue)
        while not self.gate.is_set():
            await asyncio.sleep(0.005)
        self.leave(queue)


@pytest.fixture
def gauge():
    gauge = Gauge()
    yield gauge
    gauge.gate.set()


@pytest.fixture(params=["loop", "thread"])
def flood(app, gauge, request):
    """Return a task that occupies a slot of queue `a` until the gate opens."""

    async def on_loop(_: int) -> None:
        await gauge.await_gate("a")

    def in_thread(_: int) -> None:
        gauge.wait("a")

    return app.task(name="flood", queue="a")(on_loop if request.param == "loop" else in_thread)


@pytest.fixture
def quick(app, request):
    @app.task(name="quick", queue="b")
    def quick(n: int) -> int:
        return n

    return quick


# Queues with slots of their own


def test_a_flood_in_one_queue_never_takes_the_slots_of_another(app, gauge, flood, quick):
    flood.enqueue_many([(n,) for n in range(20)])
    with app.worker(queues={"a": 3, "b": 2}, threads=1) as worker:
        wait_until(lambda: gauge.now["a"] == 3)
        assert [quick.enqueue(n).result(timeout=30) for n in range(5)] == list(range(5))
        assert gauge.most == {"a": 3}
        assert worker._components.runner.free_slots() == 2
        gauge.gate.set()
        wait_until(lambda: not app.runs(state="ready") and not app.runs(state="running"))
    assert gauge.most == {"a": 3}


def test_queues_without_a_number_share_the_concurrency(app, gauge, quick):
    @app.task(name="wait")
    async def wait(queue: str) -> None:
        await gauge.await_gate(queue)

    for queue in ("a", "b", "c"):
        wait.options(queue=queue).enqueue_many([(queue,)] * 6)
    with app.worker(queues={"a": 2, "b": None, "c": None}, concurrency=3):
        wait_until(lambda: gauge.now["a"] == 2 and gauge.now["b"] + gauge.now["c"] == 3)
        gauge.gate.set()
        wait_until(lambda: not app.runs(state="ready"))
    assert gauge.most["a"] == 2
    assert max(gauge.most["b"], gauge.most["c"]) <= 3


def test_a_slot_that_becomes_free_is_filled_without_a_poll(app, monkeypatch, gauge, flood, quick):
    monkeypatch.setattr(claimer, "POLL_INTERVAL_S", 60.0)
    runs = flood.enqueue_many([(n,) for n in range(6)])
    with app.worker(queues={"a": 2, "b": 1}):
        wait_until(lambda: gauge.now["a"] == 2)
        assert quick.enqueue(1).result(timeout=30) == 1
        gauge.gate.set()
        for run in runs:
            run.result(timeout=30)
    assert gauge.most == {"a": 2}


def test_the_end_of_a_run_is_durable_before_the_only_slot_of_its_queue_is_used_again(app):
    before: list[str] = []

    @app.task(name="serial", queue="a")
    def serial(n: int) -> None:
        before.extend(run.info().state for run in runs[:n])

    runs = serial.enqueue_many([(n,) for n in range(6)])
    with app.worker(queues={"a": 1, "b": 50}) as worker:
        pool = worker._components.runner.pools["a"]
        for run in runs:
            run.result(timeout=30)
        wait_until(lambda: pool.free() == 1)  # waiting callers are woken first
    assert before == ["done"] * 15


def test_each_queue_has_a_process_even_if_another_uses_all_cores(app, monkeypatch, tmp_path):
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    slow = app.task(name="slow", queue="a", run_in="process")(process_tasks.slow)
    pid = app.task(name="pid", queue="b", run_in="process")(process_tasks.own_pid)
    go = tmp_path / "go"
    runs = slow.enqueue_many([(1, str(go)), (2, str(go))])
    with app.worker(queues={"a": 4, "b": 4}):
        wait_until(lambda: any(run.info().state == "running" for run in runs))
        assert pid.enqueue().result(timeout=60) > 0
        assert sorted(run.info().state for run in runs) == ["ready", "running"]
        go.touch()
        assert [run.result(timeout=60)[0] for run in runs] == [1, 2]


def test_a_batch_holds_a_slot_of_its_queue(app, gauge, quick):
    @app.task(name="index", queue="a", batch=Batch(max_size=2, max_wait=0.01))
    async def index(items: list[int]) -> list[int]:
        await gauge.await_gate("a")
        return items

    runs = index.enqueue_many([(n,) for n in range(8)])
    with app.worker(queues={"a": 2, "b": 1}):
        wait_until(lambda: gauge.now["a"] == 2)
        assert quick.enqueue(7).result(timeout=30) == 7
        gauge.gate.set()
        assert [run.result(timeout=30) for run in runs] == list(range(8))
    assert gauge.most == {"a": 2}


def test_runs_of_one_batched_task_in_two_queues_are_called_apart(app):
    calls: list[list[int]] = []

    @app.task(name="index", queue="a", batch=Batch(max_size=10, max_wait=0))
    async def index(items: list[int]) -> None:
        calls.append(sorted(items))

    index.enqueue_many([(1,), (2,)])
    index.options(queue="b").enqueue_many([(3,), (4,)])
    app.worker(queues={"a": 1, "b": 1}).drain(timeout=60)
    assert sorted(calls) == [[1, 2], [3, 4]]


def test_limits_apply_within_the_slots_of_a_queue(app, gauge, quick):
    app.limit("one", concurrency=1)

    @app.task(name="limited", queue="a", limits=["one"])
    async def limited(_: int) -> None:
        await gauge.await_gate("a")

    runs = limited.enqueue_many([(n,) for n in range(3)])
    with app.worker(queues={"a": 2, "b": 1}):
        wait_until(lambda: gauge.now["a"] == 1)
        assert quick.enqueue(7).result(timeout=30) == 7
        gauge.gate.set()
        for run in runs:
            run.result(timeout=30)
    assert gauge.most == {"a": 1}


def test_a_child_continues_with_the_commit_within_the_slots_of_its_queue(app, monkeypatch, gauge, flood):
    claimed: list[int] = []
    original = claimer.CommitClaim.__call__

    def counted(self, tx):
        original(self, tx)
        claimed.append(len(self.claims()))

    monkeypatch.setattr(claimer.CommitClaim, "__call__", counted)

    @app.task(name="child", queue="b")
    async def child(n: int) -> int:
        return n

    @app.task(name="parent", queue="b")
    async def parent(ctx: Context) -> int:
        return await ctx.call(child, 1) + await ctx.call(child, 2)

    flood.enqueue_many([(n,) for n in range(6)])
    with app.worker(queues={"a": 2, "b": 8}):
        wait_until(lambda: gauge.now["a"] == 2)
        wait_until(lambda: parent.enqueue().result(timeout=30) == 3 and sum(claimed) > 0)
        gauge.gate.set()
    assert gauge.most == {"a": 2}


def test_isolated_runs_take_no_more_than_the_slots_of_their_queue(app, gauge):
    @app.task(name="suspect", queue="a")
    async def suspect(n: int) -> int:
        gauge.enter("a")
        await asyncio.sleep(0)
        gauge.leave("a")
        return n

    runs = suspect.enqueue_many([(n,) for n in range(6)])
    fetch(app, "update {}runs set held = 'isolated', isolation = 6")
    app.worker(queues={"b": 9, "a": 2}).drain(timeout=60)
    assert [run.result() for run in runs] == list(range(6))
    assert gauge.most["a"] <= 2


def test_workers_and_their_slots_are_reported(app, gauge, flood):
    run, *_ = flood.enqueue_many([(1,), (2,)])
    control = Control(app.store)
    with app.worker(queues={"a": 1, "b": 5, "c": None}, concurrency=7):
        wait_until(lambda: gauge.now["a"] == 1)
        (worker,) = control.workers.list()
        assert (worker.concurrency, worker.queue_slots) == (13, {"a": 1, "b": 5})
        assert worker.shown_queues() == ["a=1", "b=5", "c"]
        waiting = next(info for info in app.runs(state="ready"))
        (reason,) = control.whys.why(waiting.id).reasons
        assert reason.code == "busy"
        assert reason.text.startswith("all slots of queue a of worker ")
        gauge.gate.set()
    assert run.result(timeout=30) is None


@pytest.mark.parametrize(
    ("queues", "concurrency", "message"),
    [
        ({"a": 0}, None, "queues: the slots of a must be an integer from 1 to 10,000, not 0"),
        ({"a": True}, None, "queues: the slots of a must be an integer"),
        ({"a": 20, "b": 5}, 10, "each of these queues has its own"),
        ({"a": 9_990, "b": None}, 11, "the sum of all slots must be an integer from 1 to 10,000, not 10001"),
        ({}, None, "queues must be a list of names"),
        ({"$a": 1}, None, "must not start with"),
    ],
)
def test_bad_queues_are_rejected(queues, concurrency, message):
    with pytest.raises(ConfigError, match=message):
        check_queues(queues, concurrency)


def test_slots_of_queues():
    assert check_queues(None, None) == (None, {}, 100)
    assert check_queues(["a", "b"], 7) == (("a", "b"), {}, 7)
    assert check_queues({"a": 20, "b": 5}, None) == (("a", "b"), {"a": 20, "b": 5}, 25)
    assert check_queues({"a": 20, "b": None}, None) == (("a", "b"), {"a": 20}, 120)
    assert check_queues({"a": None}, 3) == (("a",), {}, 3)


# Labels


@pytest.fixture
def train(app):
    @app.task(name="train", requires={"gpu": "a100", "region": "*"})
    async def train(n: int) -> int:
        return n

    return train


def test_only_a_worker_with_the_labels_executes_a_run(app, train):
    runs = train.enqueue_many([(n,) for n in range(5)])
    for labels in (None, {"gpu": "a100"}, {"gpu": "h100", "region": "eu"}, {"region": "eu"}):
        assert app.worker(labels=labels).drain(timeout=60) == 0
    assert app.worker(labels={"gpu": "a100", "region": "eu", "ssd": "yes"}).drain(timeout=60) == 5
    assert [run.result() for run in runs] == list(range(5))


def test_a_worker_without_the_labels_claims_no_node_child_or_isolated_run(app, train):
    @app.task(name="parent")
    async def parent(ctx: Context) -> int:
        return await ctx.call(train, 41) + 1

    run = parent.enqueue()
    app.worker().drain(timeout=60)
    (child,) = app.runs(task="train")
    assert (child.state, child.attempt) == ("ready", 0)
    assert app.worker(labels={"gpu": "a100", "region": "eu"}).drain(timeout=60) > 0
    assert run.result() == 42


def test_a_run_that_no_worker_may_execute_is_reported(app, train):
    run = train.enqueue(1)
    control = Control(app.store)
    with app.worker(labels={"region": "eu"}):
        (reason,) = control.whys.why(run.id).reasons
        assert reason.code == "no_label"
        assert reason.text.startswith("no worker has the labels that task train requires, gpu=a100, region; running: ")
        assert reason.data["requires"] == {"gpu": "a100", "region": "*"}
        (finding,) = [each for each in control.doctor.examine().findings if each.code == "no_label"]
        assert "--label gpu=a100 --label region=VALUE" in finding.do
        (worker,) = control.workers.list()
        assert worker.labels == {"region": "eu"}
        with app.worker(labels={"gpu": "a100", "region": "eu"}):
            assert run.result(timeout=30) == 1
            assert not [each for each in control.doctor.examine().findings if each.code == "no_label"]


def test_workers_with_other_labels_are_woken_apart(app, train, monkeypatch):
    """One idle worker of each group is notified: those that can't execute the run must not be in the same group."""
    groups: list[str] = []
    original = SessionStore.open

    def noted(self, session, name, lease, info, status=None, wake=None):
        groups.append(wake.group)
        return original(self, session, name, lease, info, status, wake)

    monkeypatch.setattr(SessionStore, "open", noted)
    for labels in (None, {"ssd": "yes"}, {"gpu": "a100", "region": "eu"}, {"gpu": "a100", "region": "us"}):
        with app.worker(labels=labels):
            pass
    assert groups[0] == groups[1] != groups[2] == groups[3]


def test_a_run_isnt_delayed_by_an_idle_worker_without_the_label(app, make_app, train, monkeypatch):
    """Without polls, only a notification of the right worker starts the run."""
    with app.worker(), app.worker(labels={"gpu": "a100", "region": "eu"}) as able, app.worker(labels={"gpu": "h100"}):
        wait_until(lambda: sum(info.state == "idle" for info in Control(app.store).workers.list()) == 3)
        monkeypatch.setattr(claimer, "POLL_INTERVAL_S", 3600.0)
        wait_until(lambda: able._components.claimer.empty_rounds > 0)
        started = time.monotonic()
        assert train.enqueue(3).result(timeout=30) == 3
        assert time.monotonic() - started < 25


@pytest.mark.parametrize(
    ("requires", "message"),
    [
        (["gpu"], 'requires must be a mapping like {"gpu": "a100"}, not list'),
        ({"gpu": 1}, "the value of gpu must be a str, not int"),
        ({"": "x"}, "a name in task t: requires must not be empty"),
        ({"a=b": "x"}, "must not contain ="),
        ({"gpu": ""}, "the value of gpu must not be empty"),
    ],
)
def test_bad_requirements_are_rejected(app, requires, message):
    with pytest.raises(ConfigError) as refused:
        app.task(name="t", requires=requires)(lambda: None)
    assert message in str(refused.value)


def test_bad_labels_are_rejected(app):
    with pytest.raises(ConfigError, match="which tasks use for any value"):
        app.worker(labels={"gpu": "*"})
    with pytest.raises(ConfigError, match="labels must be a mapping"):
        app.worker(labels=["gpu"])  # type: ignore[arg-type]


@pytest.fixture
def near(app):
    @app.task(name="near", prefers={"region": "eu"})
    async def near() -> int:
        return threading.get_ident()

    return near


@pytest.fixture
def preferred_session(app):
    """Open the session of a worker with the preferred label, which claims nothing."""
    info = json.dumps({"labels": {"region": "eu"}, "queues": ["default"], "tasks": ["near"]})
    app.store.sessions.open("other", "other", 3600 * 10**6, "{}")  # reports nothing
    app.store.sessions.open("broken", "broken", 3600 * 10**6, "[")
    app.store.sessions.open("preferred", "preferred", 3600 * 10**6, info)


def test_runs_are_left_to_a_worker_with_the_preferred_label(app, near, monkeypatch):
    monkeypatch.setattr(known_lanes, "PREFERENCE_S", 3600.0)

    @app.task(name="there", requires={"region": "eu"})
    async def there() -> int:
        return threading.get_ident()

    with app.worker(labels={"region": "eu"}):
        preferred = there.enqueue().result(timeout=30)
        with app.worker(), app.worker(labels={"region": "us"}):
            wait_until(lambda: sum(info.state == "idle" for info in Control(app.store).workers.list()) == 3)
            assert {run.result(timeout=30) for run in [near.enqueue() for _ in range(20)]} == {preferred}


def test_a_run_that_is_left_is_explained(app, near, monkeypatch):
    for module in (known_lanes, explainer):
        monkeypatch.setattr(module, "PREFERENCE_S", 3600.0)
    info = json.dumps({"labels": {"region": "eu"}, "tasks": ["near"], "prefers": {"near": {"region": "eu"}}})
    app.store.sessions.open("preferred", "preferred", 3600 * 10**6, info)
    run = near.enqueue()
    with app.worker(labels={"region": "us"}):
        control = Control(app.store)
        other = next(each for each in control.workers.list() if each.session != "preferred")
        assert other.prefers == {"near": {"region": "eu"}}
        (reason,) = control.whys.why(run.id).reasons
    assert (reason.code, reason.data["workers"], reason.data["others"]) == ("preferred", ["preferred"], [other.name])


def test_a_run_that_has_waited_is_executed_without_the_preferred_label(app, near, preferred_session, monkeypatch):
    run = near.enqueue()
    lanes = known_lanes.KnownLanes(app.store, app.registry, None, {"region": "us"})
    monkeypatch.setattr(known_lanes, "PREFERENCE_S", 3600.0)
    lanes.refresh()
    assert (len(lanes.tasks), lanes.ordinary) == (1, [])
    monkeypatch.setattr(known_lanes, "PREFERENCE_S", 0.0)
    assert lanes.refresh()
    assert lanes.ordinary == list(lanes.tasks)
    assert app.worker().drain(timeout=60) == 1
    assert run.info().state == "done"


def test_a_preference_costs_workers_without_the_labels_one_read_per_refresh(app, near, preferred_session, monkeypatch):
    near.enqueue()
    names: list[str] = []
    execute = StoreModule._execute

    def noted(self, purpose, name, **values):
        names.append(name)
        return execute(self, purpose, name, **values)

    monkeypatch.setattr(StoreModule, "_execute", noted)
    monkeypatch.setattr(known_lanes, "PREFERRED_WORKERS_INTERVAL_S", 3600.0)
    for labels, reads in (({"region": "eu"}, []), ({}, ["find_waiting_lanes"])):
        lanes = known_lanes.KnownLanes(app.store, app.registry, None, labels)
        lanes.refresh()
        assert names == ["list_lanes", *(["list_live_sessions"] if reads else []), *reads]
        names.clear()
        lanes.refresh()
        assert names == ["list_lanes", *reads]
        names.clear()


def test_a_few_of_very_many_lanes_are_left(app, near, preferred_session, monkeypatch):
    monkeypatch.setattr(known_lanes, "PREFERENCE_S", 3600.0)
    monkeypatch.setattr(known_lanes, "MAX_CLAIM_LANES", 1)
    for name in ("one", "two"):
        app.task(name=name)(asyncio.sleep).enqueue(0)
    near.enqueue()
    lanes = known_lanes.KnownLanes(app.store, app.registry, None)
    lanes.refresh()
    claimable = set(lanes.ordinary)
    lanes.record_claims([], 100)
    claimable |= set(lanes.ordinary)
    assert {lanes.tasks[lane].name for lane in claimable} == {"one", "two"}


@pytest.mark.parametrize("settings", [{"queues": ["other"]}, {"labels": {"region": "us"}}, {"labels": {}}])
def test_nothing_is_left_if_no_live_worker_may_take_it(app, near, settings, monkeypatch):
    monkeypatch.setattr(known_lanes, "PREFERENCE_S", 3600.0)
    near.enqueue_many([()] * 3)
    with app.worker(**{"queues": ["other"], "labels": {"region": "eu"}, **settings}):
        assert app.worker(queues=["default"]).drain(timeout=60) == 3


def test_workers_with_and_without_the_preferred_label_are_woken_apart(app, near, monkeypatch):
    groups: list[str] = []
    original = SessionStore.open

    def noted(self, session, name, lease, info, status=None, wake=None):
        groups.append(wake.group)
        return original(self, session, name, lease, info, status, wake)

    monkeypatch.setattr(SessionStore, "open", noted)
    for labels in (None, {"region": "us"}, {"region": "eu"}):
        with app.worker(labels=labels):
            pass
    assert groups[0] == groups[1] != groups[2]


def test_preferred_labels_are_a_checked_setting_of_a_task(app, near):
    with pytest.raises(ConfigError, match=r"task t: prefers must be a mapping like .*, not list"):
        app.task(name="t", prefers=["gpu"])(lambda: None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="prefers is a setting of a task, not an option of a call"):
        near.options(prefers={"gpu": "a100"})


def test_requires_is_no_option_of_a_call(train):
    with pytest.raises(ConfigError, match="requires is a setting of a task, not an option of a call"):
        train.options(requires={"gpu": "a100"})


def test_a_pool_counts_claimed_runs_whose_end_is_not_durable():
    pool = SlotPool(2, 1)
    assert (pool.free(), pool.free_threads()) == (2, 1)
    pool.claimed = 3
    assert pool.free() == 0
