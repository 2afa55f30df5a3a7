"""Limits and fair queues."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import pytest

from holdfast import Context, Graph
from holdfast.errors import BadArguments, ConfigError
from tests.support.durable import drain


@dataclass
class Order:
    customer: str
    lines: list[int]


class Gauge:
    """How many are at work at once, by key."""

    def __init__(self):
        self.lock = threading.Lock()
        self.now: dict[str, int] = {}
        self.most: dict[str, int] = {}

    def __call__(self, key, work=lambda: None):
        with self.lock:
            self.now[key] = self.now.get(key, 0) + 1
            self.most[key] = max(self.most.get(key, 0), self.now[key])
        work()
        with self.lock:
            self.now[key] -= 1


@pytest.fixture
def gauge():
    return Gauge()


def counters(app, name):
    return {counter.key: counter for counter in app.store.limits.counters(name)}


@pytest.mark.parametrize(
    ("by", "keys"),
    [
        ("order.customer", {'"acme"', '"tiny"'}),
        ("order.lines.0", {"1"}),
        (lambda order, note: order.customer[0], {'"a"', '"t"'}),
        ("note", {'"none"'}),
        (None, {""}),
    ],
)
def test_one_counter_per_value(app, by, keys):
    app.limit("some", concurrency=1, by=by)

    @app.task(name="work", limits=["some"])
    def work(order: Order, note: str = "none") -> None: ...

    for customer in ("acme", "tiny"):
        work.enqueue(Order(customer, [1, 2]))
    app.worker(concurrency=2)
    session = "s"
    app.store.sessions.open(session, "w", 60_000_000, "{}")
    lanes = [app.store.lanes.ids([("default", "work")])["default", "work"]]
    app.store.claims.claim_limited(session, lanes, 8)
    assert {counter.key for counter in app.store.limits.counters("some")} == keys


def test_concurrency_is_limited(app, gauge):
    app.limit("two", concurrency=2)
    barrier = threading.Barrier(2)

    @app.task(name="work", limits=["two"])
    def work(number: int) -> None:
        gauge("all", lambda: barrier.wait(20))  # two, or it breaks

    @app.task(name="free")
    async def free(number: int) -> None: ...

    runs = [*work.enqueue_many([(number,) for number in range(10)]), *free.enqueue_many([(n,) for n in range(10)])]
    with app.worker():
        for run in runs:
            run.result(timeout=30)
    assert gauge.most == {"all": 2}


def test_a_run_that_waits_gives_its_permit_back(app):
    app.limit("one", concurrency=1)

    @app.task(name="patient", limits=["one"])
    async def patient(ctx: Context, event: str) -> str:
        return str(await ctx.wait_for(event))

    runs = [patient.enqueue(f"event {number}") for number in range(3)]
    drain(app)
    assert [run.info().state for run in runs] == ["waiting"] * 3
    for number in range(3):
        app.emit(f"event {number}", number)
    drain(app)
    assert [run.result(timeout=5) for run in runs] == ["0", "1", "2"]


def test_limits_of_a_call_replace_those_of_its_task(app):
    app.limit("one", concurrency=1)

    @app.task(name="work", limits=["one"])
    async def work() -> None: ...

    run = work.options(limits=[]).enqueue()
    assert app.store.queries.run(str(run.id)) is not None
    drain(app)
    assert run.info().state == "done"
    assert app.store.limits.counters() == []


@pytest.mark.parametrize("place", ["child", "map", "node", "enqueue"])
def test_limits_apply_to_runs_from_every_source(app, gauge, place):
    app.limit("one", concurrency=1, by="key")

    @app.task(name="work", limits=["one"])
    def work(key: str) -> str:
        gauge(key)
        return key

    @app.task(name="parent")
    async def parent(ctx: Context) -> None:
        if place == "child":
            for run in [await ctx.spawn(work, "a") for _ in range(3)]:
                await ctx.join(run)
        elif place == "map":
            await ctx.map(work, ["a", "a", "a"])
        elif place == "enqueue":
            await ctx.enqueue(work, "a")
        else:
            graph = Graph("g")
            for _ in range(3):
                graph.add(work, "a")
            await ctx.join(await ctx.submit(graph))

    run = parent.enqueue()
    with app.worker():
        run.result(timeout=30)
    drain(app)
    assert gauge.most == {"a": 1}
    limited = app.store.lanes.ids([("default", "work")])["default", "work"]
    assert limited in app.store.lanes.limited


@pytest.mark.parametrize("how", ["slot", "now"])
def test_scheduled_runs_are_limited(timed_app, clock, how):
    """Also where it is the first with limits that its task ever had."""
    timed_app.limit("one", concurrency=1)

    @timed_app.task(name="mail", limits=["one"])
    async def mail() -> None: ...

    timed_app.schedule("nightly", mail, every=60)
    timed_app.worker().drain(timeout=60)
    if how == "slot":
        clock.forward(60)
    else:
        timed_app.store.schedules.run_now("nightly", "ada")
    assert timed_app.worker().drain(timeout=60) == 1
    assert [run.state for run in timed_app.runs()] == ["done"]


def test_a_key_that_isnt_known_yet_is_refused(app):
    app.limit("one", concurrency=1, by="key")

    @app.task(name="work", limits=["one"])
    def work(key: str, other: str = "") -> str:
        return key

    graph = Graph("g")
    first = graph.add(work, "a", name="first")
    graph.add(work, "b", first.output, name="fine")
    graph.add(work, first.output, name="second")
    with pytest.raises(BadArguments, match="limit one of task work: by= depends on the output"):
        app.submit(graph)


def test_invalid_limits_are_rejected(app):
    app.limit("fine", concurrency=1, by="order.customer")

    @app.task(name="work", limits=["fine"])
    def work(order: dict[str, str]) -> None: ...

    with pytest.raises(BadArguments, match="finds nothing at 'customer'"):
        work.enqueue({})
    with pytest.raises(ConfigError, match=r"limit 'gone' is not declared.*declared limits: fine"):
        work.options(limits=["gone"]).enqueue({"customer": "a"})
    for wrong, message in [
        ({}, "limits nothing"),
        ({"concurrency": 0}, "from 1 to"),
        ({"concurrency": True}, "from 1 to"),
        ({"rate": "often"}, "must be a rate such as"),
        ({"concurrency": 1, "by": ""}, "must not be empty"),
    ]:
        with pytest.raises(ConfigError, match=message):
            app.limit("wrong", **wrong)
    with pytest.raises(ConfigError, match="declared twice"):
        app.limit("fine", concurrency=2, by="order.customer")
    app.limit("fine", concurrency=1, by="order.customer")


# Fair queues


def order_of_claims(app, count):
    app.store.sessions.open("s", "w", 60_000_000, "{}")
    lanes = list(app.store.lanes.refresh())
    found = []
    while len(found) < count and (claims := app.store.claims.claim("s", lanes, 1)):
        found += [claim.tenant for claim in claims]
    return found


def test_a_large_tenant_does_not_delay_a_small_one(app):
    app.queue("default", fair=True)

    @app.task(name="work")
    async def work(number: int) -> None: ...

    work.options(tenant="big").enqueue_many([(number,) for number in range(2000)])
    for number in range(10):
        work.options(tenant="small").enqueue(number)
    first = order_of_claims(app, 40)
    assert first[:20].count("small") == 10, "they take turns"


@pytest.mark.slow
def test_ten_start_within_the_first_hundred_claims_beside_100_000(app):
    app.queue("default", fair=True)

    @app.task(name="work")
    async def work(number: int) -> None: ...

    work.options(tenant="big").enqueue_many([(number,) for number in range(100_000)])
    work.options(tenant="small").enqueue_many([(number,) for number in range(10)])
    assert order_of_claims(app, 100).count("small") == 10


def test_weights_set_the_share_and_priorities_come_first(app):
    app.queue("default", fair=True, weights={"vip": 3})

    @app.task(name="work")
    async def work(number: int) -> None: ...

    for tenant in ("plain", "vip"):
        work.options(tenant=tenant).enqueue_many([(number,) for number in range(12)])
    work.options(tenant="plain", priority=1).enqueue(0)
    first = order_of_claims(app, 13)
    assert first[0] == "plain"
    assert first[1:13].count("vip") == 9


def test_an_idle_tenant_does_not_accumulate_turns(app):
    app.queue("default", fair=True)

    @app.task(name="work")
    async def work(number: int) -> None: ...

    work.options(tenant="a").enqueue_many([(number,) for number in range(30)])
    assert order_of_claims(app, 20) == ["a"] * 20
    work.options(tenant="b").enqueue_many([(number,) for number in range(10)])
    assert sorted(order_of_claims(app, 10)) == ["a"] * 5 + ["b"] * 5


def test_children_count_for_their_tenant(app):
    app.queue("default", fair=True)

    @app.task(name="work")
    async def work(number: int) -> None: ...

    @app.task(name="parent", queue="other")
    async def parent(ctx: Context) -> None:
        for number in range(5):
            await ctx.spawn(work, number)

    work.options(tenant="a").enqueue_many([(number,) for number in range(10)])
    parent.options(tenant="b").enqueue()
    drain(app, queues=["other"])
    assert order_of_claims(app, 8).count("b") == 4


@pytest.mark.parametrize("other", ["plain", "fair"])
def test_a_fair_queue_is_served_beside_other_queues_of_its_worker(app, ledger, other):
    app.queue("few", fair=True)
    app.queue("many", fair=other == "fair")

    @app.task(name="work")
    async def work(queue: str, number: int) -> None:
        ledger.write(queue, number)

    many = [work.options(queue="many", tenant=f"t{number}").request("many", number) for number in range(100)]
    app.enqueue_many(many)  # each is the first of its tenant
    work.options(queue="few", tenant="one").enqueue_many([("few", number) for number in range(200)])
    app.worker(concurrency=4).drain(timeout=60)
    first = [words[0] for words in ledger.words()[:100]]
    assert 30 <= first.count("few") <= 70, "they take turns"
    assert len(ledger.lines()) == 300


def test_fair_queues_are_checked(app):
    with pytest.raises(ConfigError, match="weights need fair=True"):
        app.queue("q", weights={"a": 2})
    with pytest.raises(ConfigError, match="the weight of a must be from 1"):
        app.queue("q", fair=True, weights={"a": 0})
