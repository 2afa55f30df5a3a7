"""Queues with `age_priority`: each interval of waiting counts like one more priority."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast import Context, Graph, Retry
from holdfast.errors import ConfigError
from tests.support.history_queries import fetch


@pytest.fixture
def mail(timed_app, ledger):
    """Return a task in a queue whose runs gain a priority each minute."""
    timed_app.queue("mail", age_priority=timedelta(minutes=1))

    @timed_app.task(name="mail", queue="mail", retry=Retry(max_attempts=2, delay=0))
    async def mail(what: str) -> None:
        ledger.write(what)

    return mail


def drain(app) -> None:
    app.worker(concurrency=1).drain(timeout=60)


def test_each_interval_counts_like_one_more_priority(timed_app, clock, mail, ledger):
    mail.options(priority=0).enqueue("old")
    clock.forward(120)
    for priority in (1, 3, -1, 0):
        mail.options(priority=priority).enqueue(f"new {priority}")
    clock.forward(1)
    mail.options(priority=2).enqueue("newer 2")  # as urgent as the old one, but one second younger
    drain(timed_app)
    assert ledger.lines() == ["new 3", "old", "newer 2", "new 1", "new 0", "new -1"]


def test_a_stream_of_urgent_runs_never_starves_an_old_one(timed_app, clock, mail):
    """A new urgent run arrives each minute, and one run per minute is claimed."""
    store = timed_app.store
    patient = mail.options(priority=-5).enqueue("patient")
    store.sessions.open("s", "worker", 10**12, "{}")
    claimed: list[str] = []
    for _ in range(12):
        urgent = mail.options(priority=5).enqueue("urgent")
        lanes = store.lanes.refresh()
        claimed += [str(claim.id) for claim in store.claims.claim("s", lanes, 1)]
        is_urgent = claimed[-1] == str(urgent.id)
        assert is_urgent == (len(claimed) <= 10)
        clock.forward(60)
    assert claimed.index(str(patient.id)) == 10


def test_without_age_priority_the_priority_decides_alone(timed_app, clock, ledger):
    @timed_app.task(name="plain")
    async def plain(what: str) -> None:
        ledger.write(what)

    plain.enqueue("old")
    clock.forward(3600)
    plain.options(priority=1).enqueue("new")
    drain(timed_app)
    assert ledger.lines() == ["new", "old"]


def test_people_see_the_priority_that_was_given(timed_app, mail):
    run = mail.options(priority=7).enqueue("x")
    assert run.info().priority == 7
    assert [info.priority for info in timed_app.runs()] == [7]
    assert fetch(timed_app, "select priority, turn < -2000000000000000000 from {}runs") in ([(0, True)], [(0, 1)])


def test_a_changed_priority_keeps_the_age(timed_app, clock, mail, ledger):
    low = mail.options(priority=-100).enqueue("raised")
    high = mail.options(priority=100).enqueue("lowered")
    clock.forward(60)
    mail.options(priority=2).enqueue("middle")
    low.update(priority=2)
    high.update(priority=-3)
    assert (low.info().priority, high.info().priority) == (2, -3)
    mail.enqueue("last of all but the lowered one")
    drain(timed_app)
    assert ledger.lines() == ["raised", "middle", "last of all but the lowered one", "lowered"]


def test_a_run_that_becomes_ready_later_is_as_old_as_its_readiness(timed_app, clock, mail, ledger):
    mail.options(delay=30, priority=1).enqueue("delayed")  # becomes ready at 30 s: 30 - 60
    clock.forward(10)
    mail.enqueue("plain")  # 10 - 0
    clock.forward(50)
    mail.options(priority=2).enqueue("urgent")  # 60 - 120
    timed_app.store.timers.promote_due()
    drain(timed_app)
    assert ledger.lines() == ["urgent", "delayed", "plain"]


def test_a_retry_counts_from_the_time_at_which_it_is_due(timed_app, clock):
    timed_app.queue("mail", age_priority=60)

    @timed_app.task(name="mail", queue="mail", retry=Retry(max_attempts=2, delay=30, jitter=0))
    async def mail() -> None:
        raise ValueError

    mail.options(priority=3).enqueue()
    turn = "select turn from {}runs"
    ((before,),) = fetch(timed_app, turn)
    drain(timed_app)
    clock.forward(100)
    timed_app.store.timers.promote_due()
    assert fetch(timed_app, turn) == [(before + 30_000_000 + 1,)]


def test_debounced_runs_and_replaced_ones_follow_their_newest_call(timed_app, clock, mail, ledger):
    first = mail.options(unique="u", if_taken="replace", priority=9).enqueue("was urgent")
    mail.enqueue("plain")
    second = mail.options(unique="u", if_taken="replace", priority=-1).enqueue("is not urgent")
    assert (first.id, second.info().priority) == (second.id, -1)
    mail.options(debounce="d", delay=1, priority=3).enqueue("debounced")
    clock.forward(2)
    timed_app.store.timers.promote_due()
    drain(timed_app)
    assert ledger.lines() == ["debounced", "plain", "is not urgent"]


def test_a_replaced_run_may_move_to_another_queue(timed_app, mail, ledger):
    options = {"unique": "u", "if_taken": "replace"}
    run = mail.options(**options).enqueue("aged")
    mail.options(**options, queue="plain").enqueue("plain")
    mail.options(queue="plain").enqueue("second")
    assert fetch(timed_app, "select count(*) from {}runs where turn < -2000000000000000000") == [(0,)]
    mail.options(**options).enqueue("aged again")
    assert run.info().queue == "mail"
    assert fetch(timed_app, "select count(*) from {}runs where turn < -2000000000000000000") == [(1,)]
    drain(timed_app)
    assert sorted(ledger.lines()) == ["aged again", "second"]


def test_children_nodes_and_forks_have_an_age(timed_app, clock, mail, ledger):
    @timed_app.task(name="parent", queue="mail")
    async def parent(ctx: Context) -> None:
        await ctx.call(mail.options(priority=4), "child")

    graph = Graph("two")
    first = graph.add(mail.options(priority=5).request("first"))
    graph.add(mail.options(priority=5).request("second"), after=[first])
    timed_app.submit(graph)
    parent.enqueue()
    drain(timed_app)
    done = next(info for info in timed_app.runs(task="mail") if info.priority == 4)
    fork = timed_app.get_run(done.id).fork()
    assert fork.info().priority == 4
    drain(timed_app)
    assert sorted(ledger.lines()) == ["child", "child", "first", "second"]
    turns = fetch(timed_app, "select count(*) from {}runs where turn < -2000000000000000000")
    assert turns == [(5,)]


def test_other_queues_of_a_worker_get_their_share(timed_app, mail, ledger):
    @timed_app.task(name="other")
    async def other(what: str) -> None:
        ledger.write(what)

    for n in range(3):
        mail.options(priority=-1000).enqueue(f"mail {n}")
        other.options(priority=1000).enqueue(f"other {n}")
    drain(timed_app)
    assert {line[:4] for line in ledger.lines()[:2]} == {"mail", "othe"}


def test_age_priority_isnt_available_for_fair_queues(timed_app):
    with pytest.raises(ConfigError, match="age_priority is not available with fair=True"):
        timed_app.queue("q", fair=True, age_priority=60)


@pytest.mark.parametrize("interval", [0, 0.0005, timedelta(days=2), -1])
def test_bad_intervals_are_rejected(timed_app, interval):
    with pytest.raises(ConfigError, match="age_priority"):
        timed_app.queue("q", age_priority=interval)


def test_the_widest_range_of_priorities_fits(timed_app, clock, mail, ledger):
    timed_app.queue("mail", age_priority=timedelta(days=1))
    mail.options(priority=-1_000_000).enqueue("least")
    mail.enqueue("middle")
    mail.options(priority=1_000_000).enqueue("most")
    drain(timed_app)
    assert ledger.lines() == ["most", "middle", "least"]


def test_a_replayed_graph_keeps_the_ages_of_its_nodes(timed_app, mail, ledger):
    graph = Graph("one")
    graph.add(mail.options(priority=5).request("node"))
    run = timed_app.submit(graph)
    drain(timed_app)
    fork = run.fork()
    mail.enqueue("later")
    drain(timed_app)
    assert fork.info().state == "done"
    assert ledger.lines() == ["node", "node", "later"]
