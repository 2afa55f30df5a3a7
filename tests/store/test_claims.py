"""Claims of ready runs by a session."""

from __future__ import annotations

import threading

import psycopg
import pytest

from holdfast.database import open_database
from holdfast.store import Store
from holdfast.store.claims import claim_size
from tests.support.store_harness import CANCELLED, SECOND, StoreHarness, end_of


def test_only_the_lanes_that_were_asked_for_are_claimed(harness):
    harness.session("w")
    mine, other, elsewhere = harness.add("mine"), harness.add("other"), harness.add("mine", queue="elsewhere")
    assert [claim.id for claim in harness.claim("w", 8, ["mine"])] == [mine]
    assert harness.state(other) == harness.state(elsewhere) == "ready"


def test_a_run_with_limits_isnt_claimed_without_its_permits(harness):
    """Its lane wasn't marked as limited."""
    harness.session("w")
    limited, plain = harness.add(limits="[]"), harness.add()
    assert [claim.id for claim in harness.claim("w", 8)] == [plain]
    assert harness.claim("w", 8) == []
    assert harness.state(limited) == "ready"


def test_a_claim_sets_the_session_and_counts_the_attempt(harness, clock):
    harness.session("w")
    harness.add(args="[[1],{}]", options='{"timeout":5}', priority=3)
    clock.advance(2)
    (claim,) = harness.claim("w")
    row = harness.row(claim.id)
    assert (row["state"], row["session"], row["fence"], row["attempt"]) == ("running", "w", 1, 1)
    assert (row["claimed_at"], row["started_at"]) == (clock.now, clock.now)
    assert (claim.args, claim.options, claim.priority, claim.failures) == ("[[1],{}]", '{"timeout":5}', 3, 0)
    assert (claim.fence, claim.attempt, claim.lane, claim.seq) == (1, 1, harness.lane(), row["seq"])


def test_fence_and_attempt_grow_with_each_claim_and_the_first_start_is_kept(harness, clock):
    harness.session("w")
    first = harness.running("w")
    started = clock.now
    harness.end("w", first, "handed_back")
    clock.advance(1)
    (second,) = harness.claim("w")
    assert (second.id, second.fence, second.attempt) == (first.id, 2, 2)
    row = harness.row(first.id)
    assert (row["started_at"], row["claimed_at"]) == (started, clock.now)


def test_a_claimed_run_isnt_claimed_again(harness):
    harness.session("w")
    harness.session("v")
    harness.running("w")
    assert harness.claim("w", 8) == harness.claim("v", 8) == []


def test_an_unknown_session_claims_nothing(harness):
    id = harness.add()
    assert harness.claim("stranger", 8) == []
    assert (harness.state(id), harness.row(id)["fence"]) == ("ready", 0)


def test_a_session_claims_nothing_from_the_moment_its_lease_expires(harness, clock):
    harness.session("w", lease=60)
    harness.add_many(2)
    clock.advance(59.999999)
    assert len(harness.claim("w")) == 1
    clock.advance(0.000001)
    assert harness.claim("w", 8) == []


@pytest.mark.parametrize("wanted", [1, 2, 3, 7, 100, 511, 513, 5000])
def test_a_claim_never_takes_more_than_wanted(harness, wanted):
    harness.session("w")
    harness.add_many(600)
    claimed = len(harness.claim("w", wanted))
    assert wanted / 2 < claimed <= wanted or claimed == 512
    assert harness.sql("select count(*) from {schema}runs where state = 'running'") == [(claimed,)]


def test_sizes_are_powers_of_two_and_not_more_than_wanted():
    sizes = {wanted: claim_size(wanted) for wanted in range(1, 2000)}
    assert all(size <= wanted for wanted, size in sizes.items())
    assert set(sizes.values()) == {1 << n for n in range(10)}


def test_nothing_wanted_or_no_lanes_claims_nothing(harness):
    harness.session("w")
    harness.add()
    assert harness.claim("w", 0) == harness.claim("w", -1) == harness.claim("w", 8, []) == []
    assert harness.store.claims.claim("w", [987654], 8) == []


def test_a_batch_over_several_lanes_takes_the_first_of_all_of_them(harness):
    harness.session("w")
    low = [harness.add("a") for _ in range(4)]
    high = [harness.add("b", priority=1) for _ in range(3)]
    assert [claim.id for claim in harness.claim("w", 4, ["a", "b"])] == [*high, low[0]]


@pytest.mark.parametrize("state", ["scheduled", "done", "failed", "cancelled"])
def test_runs_that_arent_ready_are_left(harness, state):
    harness.session("w")
    if state == "scheduled":
        harness.add(delay=SECOND)
    elif state == "cancelled":
        harness.store.actions.cancel(harness.add(), CANCELLED)
    else:
        harness.end("w", harness.running("w"), state)
    assert harness.claim("w", 8) == []
    assert not harness.store.claims.has_ready([harness.lane()])


def test_held_runs_are_skipped_and_do_not_block_others(harness):
    harness.session("w")
    held, free = harness.add(priority=9), harness.add()
    harness.sql("update {schema}runs set held = 'limit' where id = cast(:id as {uuid})", id=held)
    assert [claim.id for claim in harness.claim("w", 1)] == [free]
    assert harness.claim("w", 8) == []
    assert harness.row(held)["state"] == "ready"


def test_a_run_that_another_transaction_has_locked_is_skipped(postgres_url):
    harness = StoreHarness(postgres_url)
    harness.session("w")
    first, second = harness.add(), harness.add()
    with psycopg.connect(postgres_url) as other:
        other.execute("select 1 from holdfast.runs where id = %s for update", (first,))
        assert [claim.id for claim in harness.claim("w", 2)] == [second]
    assert [claim.id for claim in harness.claim("w", 2)] == [first]
    harness.close()


def test_sessions_that_claim_at_once_never_get_the_same_run(harness):
    """Four workers with stores of their own empty a queue; each run is claimed once."""
    ids = harness.add_many(400)
    lane = harness.lane()
    claimed: list[tuple[str, int]] = []
    gate = threading.Barrier(4)

    def work(name: str) -> None:
        store = Store(open_database(harness.url, "holdfast"), clock=harness.clock)
        store.sessions.open(name, name, 60 * SECOND, "{}")
        gate.wait()
        while store.claims.has_ready([lane]):
            claimed.extend((claim.id, claim.fence) for claim in store.claims.claim(name, [lane], 7))
        store.close()

    threads = [threading.Thread(target=work, args=(f"w{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == sorted((id, 1) for id in ids)


def test_list_owned_returns_the_runs_of_a_session_in_any_state(harness):
    harness.session("w")
    harness.session("v")
    running, cancelled = harness.running("w"), harness.running("w")
    harness.running("v")
    harness.store.actions.cancel(cancelled.id, CANCELLED)
    assert sorted(harness.store.claims.list_owned("w")) == sorted(
        [(running.id, 1, "running"), (cancelled.id, 1, "cancelled")]
    )
    harness.end("w", running)
    assert harness.store.claims.list_owned("w") == [(cancelled.id, 1, "cancelled")]


def test_lanes_are_active_while_a_run_is_ready_or_running(harness):
    harness.session("w")
    busy = harness.store.claims.has_active
    harness.lane()
    assert not busy([harness.lane()])
    harness.add(delay=SECOND)
    assert not busy([harness.lane()])
    claim = harness.running("w")
    assert busy([harness.lane()])
    assert not busy([harness.lane("other")])
    harness.end("w", claim)
    assert not busy([harness.lane()])


def test_runs_that_another_worker_has_locked_are_skipped_and_the_next_are_claimed(postgres_url):
    harness = StoreHarness(postgres_url)
    harness.session("w")
    ids = [harness.add() for _ in range(9)]
    with psycopg.connect(postgres_url) as other:
        first = "(select seq from holdfast.runs order by seq limit 4)"
        other.execute(f"select 1 from holdfast.runs where seq in {first} for no key update")
        assert [claim.id for claim in harness.claim("w", 4)] == ids[4:8], "as many as were wanted, and no more"
    assert [claim.id for claim in harness.claim("w", 8)] == [*ids[:4], ids[8]]
    harness.close()


class TestPickingWithoutALock:
    """On SQLite runs are picked before the lock is taken, and other writes may happen in between."""

    @pytest.fixture
    def harness(self, sqlite_url):
        harness = StoreHarness(sqlite_url)
        yield harness
        harness.close()

    @pytest.fixture
    def between(self, harness, monkeypatch):
        """A function that has something happen between the pick and the lock of the next claim."""

        def let(happen):
            real = harness.store.claims._execute
            calls = []

            def one(purpose, name, /, **given):
                found = real(purpose, name, **given)
                if name == "pick_claimable" and not calls:
                    calls.append(name)
                    happen()
                return found

            monkeypatch.setattr(harness.store.claims, "_execute", one)

        return let

    def test_runs_claimed_by_another_process_since_the_pick_are_not_claimed_twice(self, harness, between):
        harness.session("w")
        harness.session("v")
        ids = [harness.add() for _ in range(5)]
        other = harness.another_store().claims
        between(lambda: taken.extend(other.claim("v", [harness.lane()], 3)))
        taken = []
        assert [claim.id for claim in harness.claim("w", 4)] == ids[3:]
        assert [claim.id for claim in taken] == ids[:3]
        assert [harness.row(id)["fence"] for id in ids] == [1] * 5

    def test_if_all_picked_runs_were_claimed_the_next_are_picked_under_the_lock(self, harness, between):
        harness.session("w")
        harness.session("v")
        ids = [harness.add() for _ in range(5)]
        other = harness.another_store().claims
        between(lambda: other.claim("v", [harness.lane()], 2))
        assert [claim.id for claim in harness.claim("w", 2)] == ids[2:4]

    def test_a_more_urgent_run_added_since_the_pick_is_claimed_first(self, harness, between):
        harness.session("w")
        first, second = harness.add(), harness.add()
        urgent = []
        between(lambda: urgent.append(harness.add(priority=1)))
        assert [claim.id for claim in harness.claim("w", 1)] == urgent
        assert [claim.id for claim in harness.claim("w", 8)] == [first, second]

    @pytest.mark.parametrize("comes", ["urgent", "in another lane", "due", "at an earlier turn"])
    def test_no_run_added_since_the_pick_is_overtaken(self, harness, between, comes):
        harness.session("w")
        due = harness.add(delay=SECOND)
        ids = [harness.add(turn=5), harness.add(turn=5)]
        came = []
        between(
            {
                "urgent": lambda: came.append(harness.add(priority=1)),
                "in another lane": lambda: came.append(harness.add(queue="other", priority=1)),
                "due": lambda: harness.sql("update {schema}runs set state = 'ready' where state = 'scheduled'"),
                "at an earlier turn": lambda: came.append(harness.add(turn=4)),
            }[comes]
        )
        lanes = [harness.lane(), harness.lane(queue="other")]
        assert [claim.id for claim in harness.store.claims.claim("w", lanes, 2)] == [*(came or [due]), ids[0]]

    def test_runs_added_behind_the_picked_ones_cause_no_second_pick(self, harness, between, monkeypatch):
        harness.session("w")
        ids = [harness.add(), harness.add()]
        between(lambda: (harness.add(), harness.add(priority=-1)))
        monkeypatch.setattr(harness.store.claims, "_transaction", None)
        assert [claim.id for claim in harness.claim("w", 2)] == ids

    def test_changes_of_a_run_since_the_pick_are_seen(self, harness, between):
        harness.session("w")
        harness.session("v")
        id = harness.add()
        other = harness.another_store()

        def go_and_come():
            (claim,) = other.claims.claim("v", [harness.lane()], 1)
            other.attempts.end("v", [end_of(claim, kind="retrying", state="ready", failed=1)])

        between(go_and_come)
        (claim,) = harness.claim("w", 1)
        assert (claim.id, claim.fence, claim.attempt, claim.failures) == (id, 2, 2, 1)

    def test_if_the_sums_match_by_coincidence_only_what_was_claimed_is_returned(self, harness, between):
        """One went and another came, and their numbers are the same."""
        harness.session("w")
        harness.session("v")
        came, went, taken = harness.add(delay=SECOND), harness.add(), harness.add(args="[7]", turn=1)
        other = harness.another_store().claims

        def swap():
            assert [claim.id for claim in other.claim("v", [harness.lane()], 1)] == [went]
            harness.sql("update {schema}runs set state = 'ready', records = 1000 where state = 'scheduled'")

        between(swap)
        (claim,) = harness.claim("w", 2)
        assert [owned.id for owned in harness.store.claims.list_owned("w")] == [taken]
        assert [claim.id for claim in harness.claim("w", 2)] == [came]
        row = harness.row(taken)
        known = (claim.id, claim.seq, claim.args, claim.turn, claim.fence, claim.attempt, claim.limits)
        assert known == (taken, row["seq"], "[7]", 1, row["fence"], row["attempt"], None)

    @pytest.mark.parametrize("happens", ["pause", "cancel", "close"])
    def test_runs_that_may_no_longer_start_are_not_claimed(self, harness, between, happens):
        harness.session("w")
        id = harness.add()
        between(
            {
                "pause": lambda: harness.store.queues.pause(["default"]),
                "cancel": lambda: harness.store.actions.cancel(id, CANCELLED),
                "close": lambda: harness.store.sessions.close("w"),
            }[happens]
        )
        assert harness.claim("w", 8) == []
        assert (harness.row(id)["session"], harness.row(id)["fence"]) == (None, 0)
