"""The connection breaks around a commit: committed or not, the effect exists once in the end.

A proxy before the server causes the fault and confirms that it happened.
"""

from __future__ import annotations

import threading

import pytest

from holdfast.database import base
from holdfast.errors import StoreUnavailable
from holdfast.model.gate_links import LinkRequest
from holdfast.store import Claim
from holdfast.store.graphs import gate_completed
from tests.support.graph_harness import gate, node, submit
from tests.support.proxy import COMMIT, Proxy
from tests.support.store_harness import CANCELLED, SECOND, StoreHarness, end_of

ENQUEUE = b'insert into "holdfast".runs'
CLAIM = b"set state = 'running'"
END = b'insert into "holdfast".history'
LINK = LinkRequest.of(3600, None)
BOTH = pytest.mark.parametrize("lost", ["answer", "request"])


@pytest.fixture
def proxy(postgres_url):
    with Proxy(postgres_url) as proxy:
        yield proxy


@pytest.fixture
def far(proxy):
    """A harness behind the proxy, with tables created and the lane cached."""
    harness = StoreHarness(proxy.url)
    harness.session("w")
    harness.lane()
    yield harness
    harness.close()


def lose(proxy, lost, trigger):
    getattr(proxy, f"lose_{lost}")(trigger)


@BOTH
def test_an_enqueue_creates_one_run(proxy, far, lost):
    lose(proxy, lost, ENQUEUE)
    id = far.add()
    assert proxy.fired.is_set()
    assert far.sql("select cast(id as text) from {schema}runs") == [(id,)]


@BOTH
def test_an_enqueue_with_key_and_unique_name_creates_one_run(proxy, far, lost):
    lose(proxy, lost, COMMIT)
    batch = [far.new(key="k", unique="u"), far.new(key="k"), far.new(unique="u"), far.new()]
    batch[1].unique = "u"
    ids = far.store.enqueuer.enqueue(batch)
    assert proxy.fired.is_set()
    assert ids == [batch[0].id, batch[0].id, batch[0].id, batch[3].id]
    assert (far.rows("runs"), far.rows("keys")) == (2, 1)


def test_a_claim_whose_answer_was_lost_is_known_to_the_database_and_can_be_handed_back(proxy, far):
    ids = set(far.add_many(4))
    lose(proxy, "answer", CLAIM)
    claimed = {claim.id for claim in far.claim("w", 2)}
    assert proxy.fired.is_set()
    owned = far.store.claims.list_owned("w")
    unknown = [run for run in owned if run.id not in claimed]
    assert len(claimed) == len(unknown) == 2, "the first two were claimed, nobody was told, and two more came"
    ends = [end_of(far_claim(run), "handed_back") for run in unknown]
    assert far.store.attempts.end("w", ends) == {end.claim for end in ends}
    again = {claim.id for claim in far.claim("w", 2)}
    assert (claimed | again, claimed & again) == (ids, set())


def far_claim(run):
    """Return what a heartbeat reads of a claim whose answer was lost."""
    return Claim(run.id, 0, 0, 0, 0, run.fence, 1, 0, None, "", None)


def test_a_claim_that_did_not_reach_the_server_claims_each_run_once(proxy, far):
    far.add_many(2)
    lose(proxy, "request", CLAIM)
    claimed = {claim.id for claim in far.claim("w", 2)}
    assert proxy.fired.is_set()
    assert claimed == {run.id for run in far.store.claims.list_owned("w")}
    assert len(claimed) == 2


@BOTH
@pytest.mark.parametrize("kind", ["done", "retrying", "handed_back"])
def test_an_end_is_recorded_once_and_counts(proxy, far, lost, kind):
    claim = far.running("w")
    lose(proxy, lost, END)
    assert far.end("w", claim, kind)
    assert proxy.fired.is_set()
    assert far.kinds(claim.id) == [kind]
    assert far.row(claim.id)["records"] == 1


@BOTH
def test_the_end_of_a_child_is_recorded_once(proxy, far, lost):
    """In the transaction that expects the claims to hold."""
    far.spawn("w", far.running("w"))
    child = far.child("w")
    lose(proxy, lost, COMMIT)
    assert far.end("w", child, in_tree=True)
    assert proxy.fired.is_set()
    assert (far.kinds(child.id), far.row(child.id)["records"]) == (["done"], 1)


@BOTH
def test_a_spawn_creates_one_child(proxy, far, lost):
    claim = far.running("w")
    far.store.lanes.for_runs([far.new("child")])
    lose(proxy, lost, COMMIT)
    (child,) = far.spawn("w", claim)
    assert proxy.fired.is_set()
    assert far.sql("select cast(id as text) from {schema}runs where parent is not null") == [(child,)]
    assert far.rows("checkpoints") == 1


@BOTH
def test_a_recovery_counts_one_crash(proxy, far, lost):
    claim = far.running("w")
    far.clock.advance(60)
    lose(proxy, lost, COMMIT)
    far.recover("w")
    assert proxy.fired.is_set()
    assert (far.row(claim.id)["crashes"], far.kinds(claim.id)) == (1, ["crashed"])


@BOTH
def test_a_cancel_is_recorded_once(proxy, far, lost):
    id = far.add()
    lose(proxy, lost, COMMIT)
    far.store.actions.cancel(id, CANCELLED)
    assert proxy.fired.is_set()
    assert (far.state(id), far.kinds(id)) == ("cancelled", ["cancelled"])


@BOTH
def test_a_session_is_opened_once_and_renewed(proxy, far, lost):
    lose(proxy, lost, b'insert into "holdfast".workers')
    far.store.database.connection("heartbeat").close()  # a new connection says the statement in full
    far.session("v")
    assert proxy.fired.is_set()
    assert far.sql("select count(*) from {schema}workers where session = 'v'") == [(1,)]
    assert far.store.sessions.renew("v", SECOND)


def test_a_connection_cut_between_calls_is_opened_again(proxy, far):
    before = proxy.accepted
    proxy.cut()
    id = far.add()
    assert far.state(id) == "ready"
    assert proxy.accepted == before + 1


def test_a_server_that_is_gone_is_unavailable_and_found_again_later(postgres_url, proxy, far, monkeypatch):
    proxy.close()
    with pytest.raises(StoreUnavailable, match="cannot connect to"):
        far.add()
    monkeypatch.setattr(base, "RECONNECT_DELAY_S", 0.0)
    with pytest.raises(StoreUnavailable, match="cannot connect to"):
        far.add()
    with Proxy(postgres_url, proxy.port):
        assert far.state(far.add()) == "ready"
        assert far.rows("runs") == 1


def test_a_hanging_call_is_aborted_and_repeated(proxy, far):
    """Packets are dropped without an error: only aborting the stuck call ends it."""
    far.add()
    proxy.pause()
    made: list[str] = []
    thread = threading.Thread(target=lambda: made.append(far.add()))
    thread.start()
    while not far.store.database.abort_stuck_calls(0.05):
        thread.join(0.01)
    proxy.resume()
    thread.join(30)
    assert len(made) == 1
    assert far.rows("runs") == 2


@BOTH
def test_a_decision_by_a_link_is_recorded_once_and_reported_as_recorded(proxy, far, lost):
    graph = submit(far, gate("ask"), node(far, "after", "ask"))
    linked = far.store.graphs.add_link(graph.id, "ask", LINK)
    lose(proxy, lost, COMMIT)
    assert far.store.graphs.conclude_linked_gate(linked.id, linked.opening, LINK.id, gate_completed("ask", 1, "ada"))
    assert proxy.fired.is_set()
    for answer in (1, 2):
        outcome = gate_completed("ask", answer, "ada")
        assert not far.store.graphs.conclude_linked_gate(linked.id, linked.opening, LINK.id, outcome)
    kinds = far.sql(f"select kind from {{schema}}history where run = '{linked.id}'")
    assert kinds.count(("completed",)) == 1


def test_a_link_is_not_used_again_for_a_gate_that_was_reopened_after_a_lost_answer(proxy, far):
    graph = submit(far, gate("ask"))
    linked = far.store.graphs.add_link(graph.id, "ask", LINK)
    far.store.actions.cancel(graph.id, CANCELLED)
    far.store.actions.retry(graph.id)
    lose(proxy, "request", COMMIT)
    assert not far.store.graphs.conclude_linked_gate(
        linked.id, linked.opening, LINK.id, gate_completed("ask", 1, "ada")
    )
    assert far.store.graphs.add_link(graph.id, "ask", LINK).opening > linked.opening
