"""Notifications: ends notify waiting clients, new work notifies idle workers, and only while there are any."""

from __future__ import annotations

import threading
from contextlib import closing

import psycopg
import pytest

from holdfast.store.graphs import gate_completed
from holdfast.store.sessions import WakeAddress
from tests.support.graph_harness import gate, node, submit
from tests.support.store_harness import CANCELLED, CRASHED, OVERDUE, SECOND, StoreHarness, end_of


class Ear:
    """Listens as another program might, in the order of commits."""

    def __init__(self, harness: StoreHarness, channel: str) -> None:
        self._channel = channel
        self._connection = psycopg.connect(harness.url, autocommit=True)
        self._connection.execute(f'listen "{self._channel}"')

    def heard(self) -> int:
        """How many notifications have come since the last call: what this one sends itself is the last of them."""
        with psycopg.connect(self._connection.info.dsn, autocommit=True) as other:
            other.execute("select pg_notify(%s, 'last')", [self._channel])
        for count, notification in enumerate(self._connection.notifies(timeout=60)):
            if notification.payload == "last":
                return count
        raise AssertionError("what was sent never came")

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def postgres(postgres_url):
    harness = StoreHarness(postgres_url)
    harness.session("w", lease=3600)
    yield harness
    harness.close()


@pytest.fixture
def ear(postgres):
    ear = Ear(postgres, postgres.store.database.dialect.ends_channel)
    yield ear
    ear.close()


def done(harness):
    assert harness.end("w", harness.running("w"))


def done_in_a_batch(harness):
    harness.add_many(16)
    claims = harness.claim("w", 16)
    assert len(harness.store.attempts.end("w", [end_of(claim) for claim in claims])) == 16


def failed(harness):
    assert harness.end("w", harness.running("w"), "failed")


def limited(harness):
    harness.store.limits.declare([("few", 5, None)])
    harness.add(limits='["[\\"few\\",null]"]')
    (claim,) = harness.store.claims.claim_limited("w", [harness.lane()], 1)
    assert harness.end("w", claim, limits=claim.limits)


def family(harness):
    assert harness.end("w", harness.running("w"), in_tree=True)


def undone(harness):
    claim = harness.running("w")
    assert harness.end("w", claim, "undoing", in_tree=True)
    (claim,) = harness.claim("w")
    assert harness.end("w", claim, "undone", state="failed", in_tree=True)


def crashed(harness):
    claim = harness.running("w", max_crashes=0)
    _, ended = harness.store.attempts.crash("w", [end_of(claim, "failed", error=CRASHED)])
    assert ended == [claim.id]


def recovered(harness):
    harness.session("dead", lease=1)
    claim = harness.running("dead", max_crashes=0)
    harness.clock.advance(2)
    assert harness.recover("dead").failed == [claim.id]


def cancelled(harness):
    assert harness.store.actions.cancel(harness.add(), CANCELLED)


def overdue(harness):
    id = harness.add(deadline_in=SECOND)
    harness.clock.advance(2)
    assert harness.store.timers.fail_overdue(OVERDUE) == [id]


def graph(harness):
    made = submit(harness, node(harness, "only"))
    (claim,) = harness.claim("w")
    assert harness.end("w", claim, in_tree=True)
    assert harness.state(made.id) == "done"


def gate_opened(harness):
    made = submit(harness, gate("ok"))
    harness.store.graphs.conclude_gate(made.id, "ok", gate_completed("ok", "yes", None))
    assert harness.state(made.id) == "done"


ENDS = [
    done, done_in_a_batch, failed, limited, family, undone, crashed, recovered, cancelled, overdue, graph, gate_opened,
]  # fmt: skip


@pytest.mark.parametrize("end", ENDS)
def test_every_kind_of_end_notifies_waiting_clients_only(postgres, ear, end):
    end(postgres)
    assert ear.heard() == 0, "nobody waits"
    postgres.store.watchers.add("client", 60 * SECOND)
    end(postgres)
    assert 1 <= ear.heard() <= 3, "once for each transaction, however many end in it"
    postgres.store.watchers.remove("client")
    end(postgres)
    assert ear.heard() == 0, "it waits no more"


HANDED_OVER = [done, done_in_a_batch, failed, limited, family, undone]


@pytest.mark.parametrize("end", ENDS)
def test_a_client_is_not_notified_of_ends_that_its_own_worker_hands_over(postgres, ear, end):
    postgres.store.watchers.add("own", 60 * SECOND, hears_workers=True)
    end(postgres)
    assert (ear.heard() == 0) == (end in HANDED_OVER)
    other = postgres.another_store()
    other.watchers.add("other", 60 * SECOND, hears_workers=True)
    end(postgres)
    assert ear.heard() >= 1, "the client of another process"
    other.watchers.remove("other")
    postgres.store.watchers.remove("own")
    assert postgres.store._context.watcher is None


def test_a_batch_of_ends_notifies_once(postgres, ear):
    postgres.store.watchers.add("client", 60 * SECOND)
    done_in_a_batch(postgres)
    assert ear.heard() == 1


@pytest.mark.parametrize("kind", ["retrying", "timed_out", "handed_back", "waiting", "restarted"])
def test_attempts_that_do_not_end_the_run_do_not_notify(postgres, ear, kind):
    postgres.store.watchers.add("client", 60 * SECOND)
    family = kind in ("waiting", "restarted")
    assert postgres.end("w", postgres.running("w"), kind, in_tree=family)
    postgres.add()
    assert ear.heard() == 0


def test_an_expired_watcher_is_not_notified_until_it_renews(postgres, ear):
    postgres.store.watchers.add("client", 30 * SECOND)
    postgres.clock.advance(20)
    postgres.store.watchers.renew("client", 30 * SECOND)
    postgres.clock.advance(20)
    done(postgres)
    assert ear.heard() == 1
    postgres.clock.advance(20)
    done(postgres)
    assert ear.heard() == 0
    postgres.store.watchers.renew("client", 30 * SECOND)
    done(postgres)
    assert ear.heard() == 1


def test_rows_of_dead_watchers_are_pruned(postgres):
    for n in range(5):
        postgres.store.watchers.add(f"client {n}", 30 * SECOND)
        postgres.clock.advance(20)
    assert postgres.rows("watchers") == 2
    postgres.store.watchers.remove("client 4")
    assert postgres.sql("select id from {schema}watchers") == [("client 3",)]


def test_watchers_write_nothing_on_databases_that_do_not_notify(sqlite_url):
    """There a listener sees all commits, including its own."""
    harness = StoreHarness(sqlite_url)
    watch = harness.store.database.change_listener("completions")
    stop = threading.Event()
    assert watch.wait(0, stop), "the first look only begins to watch"
    harness.store.watchers.add("client", SECOND)
    harness.store.watchers.renew("client", SECOND)
    harness.store.watchers.remove("client")
    assert not watch.wait(0, stop)
    harness.close()


def test_a_listener_for_ends_is_not_notified_of_new_work(postgres):
    postgres.store.watchers.add("client", 60 * SECOND)
    postgres.store.sessions.mark_idle("w", True)
    ends, work = (postgres.store.database.change_listener(topic) for topic in ("completions", "work"))
    stop = threading.Event()
    assert ends.wait(0, stop)
    assert work.wait(0, stop)
    claim = postgres.running("w")
    assert work.wait(60, stop)
    assert not ends.wait(0.01, stop)
    postgres.end("w", claim)
    assert ends.wait(60, stop)
    ends.close()
    work.close()


def test_new_work_notifies_only_idle_workers_and_once_per_batch(postgres):
    with closing(Ear(postgres, postgres.store.database.dialect.channel)) as ear:
        postgres.add()
        assert ear.heard() == 0
        postgres.store.sessions.mark_idle("w", True)
        postgres.add_many(5)
        assert ear.heard() == 1
        postgres.store.sessions.mark_idle("w", False)
        postgres.add()
        assert ear.heard() == 0


WAKE_STATES = [("b", "group 1"), ("a", "group 1"), ("c", "group 2"), ("", "group 3")]


@pytest.fixture
def fleet(postgres):
    """Idle workers of several groups, the channel on which each listens, and what arrives there."""
    postgres.store.sessions.close("w")
    ears = {}
    for number, (channel, group) in enumerate(WAKE_STATES):
        address = WakeAddress(channel and f"holdfast.{channel}", group)
        postgres.store.sessions.open(f"w{number}", "w", 3600 * SECOND, "{}", None, address)
        postgres.store.sessions.mark_idle(f"w{number}", True)
        if channel:
            ears[channel] = Ear(postgres, address.channel)
    yield postgres, lambda: {name for name, ear in ears.items() if ear.heard()}
    for ear in ears.values():
        ear.close()


def test_new_work_notifies_one_idle_worker_of_each_group(fleet):
    harness, heard = fleet
    harness.add_many(5)
    assert heard() == {"a", "c"}
    harness.store.sessions.mark_idle("w1", False)
    harness.add()
    assert heard() == {"b", "c"}, "the next one, because the first is busy"


def test_a_worker_hands_work_on_within_its_group(fleet):
    harness, heard = fleet
    assert harness.store.sessions.wake_next("w1", "group 1")
    assert heard() == {"b"}
    assert not harness.store.sessions.wake_next("w2", "group 2"), "there is no other"
    assert not harness.store.sessions.wake_next("x", "group 3"), "it can't listen"
    assert heard() == set()


def test_a_worker_that_did_not_respond_is_passed_over_until_it_marks_itself_again(fleet):
    harness, heard = fleet
    harness.store.sessions.unmark_unresponsive("w0", "group 1")
    harness.add()
    assert heard() == {"b", "c"}
    harness.store.sessions.mark_idle("w1", True)
    harness.add()
    assert heard() == {"a", "c"}


def test_an_expired_worker_is_not_chosen(fleet):
    harness, heard = fleet
    harness.sql("update {schema}workers set lease_until = 1 where session = 'w1'")
    harness.add()
    assert heard() == {"b", "c"}


def test_workers_of_an_earlier_release_are_notified_on_the_channel_of_the_schema(fleet):
    harness, heard = fleet
    harness.session("old", lease=3600)
    harness.store.sessions.mark_idle("old", True)
    with closing(Ear(harness, harness.store.database.dialect.channel)) as shared:
        harness.add()
        assert shared.heard() == 1
    assert heard() == {"a", "c"}


def handed_back(harness, claim):
    assert harness.end("other", claim, "handed_back")


def released(harness, claim):
    """The code of a stopping worker outlived the end of its attempt."""
    assert harness.end("other", claim, "handed_back", still_running=1)
    assert harness.store.attempts.release("other", [(claim.id, claim.fence)])


def lost(harness, _claim):
    harness.clock.advance(61)
    assert harness.recover("other").requeued == 1


@pytest.mark.parametrize("is_idle", [False, True])
@pytest.mark.parametrize("give_up", [handed_back, released, lost])
def test_a_run_that_another_worker_gave_up_notifies_idle_workers(postgres, give_up, is_idle):
    postgres.session("other", lease=60)
    claim = postgres.running("other")
    postgres.store.sessions.mark_idle("w", is_idle)
    with closing(Ear(postgres, postgres.store.database.dialect.channel)) as ear:
        give_up(postgres, claim)
        assert (ear.heard() > 0) is is_idle


def test_a_worker_that_died_idle_causes_no_notifications(postgres):
    with closing(Ear(postgres, postgres.store.database.dialect.channel)) as ear:
        postgres.store.sessions.mark_idle("w", True)
        postgres.clock.advance(3601)
        postgres.add()
        assert ear.heard() == 0


def test_closing_one_listener_of_a_file_does_not_close_the_other(sqlite_url):
    harness = StoreHarness(sqlite_url)
    ends, work = (harness.store.database.change_listener(topic) for topic in ("completions", "work"))
    stop = threading.Event()
    for watch in (ends, work):
        assert watch.wait(0, stop)
    ends.close()
    assert ends._connection._connection is None
    assert work._connection._connection is not None
    harness.close()
