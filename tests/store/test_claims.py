"""Claims of ready runs by a session."""

from __future__ import annotations

import threading

import psycopg
import pytest

from holdfast.database import open_database
from holdfast.store import Store
from holdfast.store.claims import claim_size
from tests.support.world import CANCELLED, SECOND, World, end_of


def test_only_the_lanes_that_were_asked_for_are_claimed(world):
    world.session("w")
    mine, other, elsewhere = world.add("mine"), world.add("other"), world.add("mine", queue="elsewhere")
    assert [claim.id for claim in world.claim("w", 8, ["mine"])] == [mine]
    assert world.state(other) == world.state(elsewhere) == "ready"


def test_a_run_with_limits_isnt_claimed_without_its_permits(world):
    """Its lane wasn't marked as limited."""
    world.session("w")
    limited, plain = world.add(limits="[]"), world.add()
    assert [claim.id for claim in world.claim("w", 8)] == [plain]
    assert world.claim("w", 8) == []
    assert world.state(limited) == "ready"


def test_a_claim_sets_the_session_and_counts_the_attempt(world, clock):
    world.session("w")
    world.add(args="[[1],{}]", options='{"timeout":5}', priority=3)
    clock.advance(2)
    (claim,) = world.claim("w")
    row = world.row(claim.id)
    assert (row["state"], row["session"], row["fence"], row["attempt"]) == ("running", "w", 1, 1)
    assert (row["claimed_at"], row["started_at"]) == (clock.now, clock.now)
    assert (claim.args, claim.options, claim.priority, claim.failures) == ("[[1],{}]", '{"timeout":5}', 3, 0)
    assert (claim.fence, claim.attempt, claim.lane, claim.seq) == (1, 1, world.lane(), row["seq"])


def test_fence_and_attempt_grow_with_each_claim_and_the_first_start_is_kept(world, clock):
    world.session("w")
    first = world.running("w")
    started = clock.now
    world.end("w", first, "handed_back")
    clock.advance(1)
    (second,) = world.claim("w")
    assert (second.id, second.fence, second.attempt) == (first.id, 2, 2)
    row = world.row(first.id)
    assert (row["started_at"], row["claimed_at"]) == (started, clock.now)


def test_a_claimed_run_isnt_claimed_again(world):
    world.session("w")
    world.session("v")
    world.running("w")
    assert world.claim("w", 8) == world.claim("v", 8) == []


def test_an_unknown_session_claims_nothing(world):
    id = world.add()
    assert world.claim("stranger", 8) == []
    assert (world.state(id), world.row(id)["fence"]) == ("ready", 0)


def test_a_session_claims_nothing_from_the_moment_its_lease_expires(world, clock):
    world.session("w", lease=60)
    world.add_many(2)
    clock.advance(59.999999)
    assert len(world.claim("w")) == 1
    clock.advance(0.000001)
    assert world.claim("w", 8) == []


@pytest.mark.parametrize("wanted", [1, 2, 3, 7, 100, 511, 513, 5000])
def test_a_claim_never_takes_more_than_wanted(world, wanted):
    world.session("w")
    world.add_many(600)
    claimed = len(world.claim("w", wanted))
    assert wanted / 2 < claimed <= wanted or claimed == 512
    assert world.sql("select count(*) from {schema}runs where state = 'running'") == [(claimed,)]


def test_sizes_are_powers_of_two_and_not_more_than_wanted():
    sizes = {wanted: claim_size(wanted) for wanted in range(1, 2000)}
    assert all(size <= wanted for wanted, size in sizes.items())
    assert set(sizes.values()) == {1 << n for n in range(10)}


def test_nothing_wanted_or_no_lanes_claims_nothing(world):
    world.session("w")
    world.add()
    assert world.claim("w", 0) == world.claim("w", -1) == world.claim("w", 8, []) == []
    assert world.store.claims.claim("w", [987654], 8) == []


def test_a_batch_over_several_lanes_takes_the_first_of_all_of_them(world):
    world.session("w")
    low = [world.add("a") for _ in range(4)]
    high = [world.add("b", priority=1) for _ in range(3)]
    assert [claim.id for claim in world.claim("w", 4, ["a", "b"])] == [*high, low[0]]


@pytest.mark.parametrize("state", ["scheduled", "done", "failed", "cancelled"])
def test_runs_that_arent_ready_are_left(world, state):
    world.session("w")
    if state == "scheduled":
        world.add(delay=SECOND)
    elif state == "cancelled":
        world.store.actions.cancel(world.add(), CANCELLED)
    else:
        world.end("w", world.running("w"), state)
    assert world.claim("w", 8) == []
    assert not world.store.claims.has_ready([world.lane()])


def test_held_runs_are_skipped_and_do_not_block_others(world):
    world.session("w")
    held, free = world.add(priority=9), world.add()
    world.sql("update {schema}runs set held = 'limit' where id = cast(:id as {uuid})", id=held)
    assert [claim.id for claim in world.claim("w", 1)] == [free]
    assert world.claim("w", 8) == []
    assert world.row(held)["state"] == "ready"


def test_a_run_that_another_transaction_has_locked_is_skipped(postgres_url):
    world = World(postgres_url)
    world.session("w")
    first, second = world.add(), world.add()
    with psycopg.connect(postgres_url) as other:
        other.execute("select 1 from holdfast.runs where id = %s for update", (first,))
        assert [claim.id for claim in world.claim("w", 2)] == [second]
    assert [claim.id for claim in world.claim("w", 2)] == [first]
    world.close()


def test_sessions_that_claim_at_once_never_get_the_same_run(world):
    """Four workers with stores of their own empty a queue; each run is claimed once."""
    ids = world.add_many(400)
    lane = world.lane()
    claimed: list[tuple[str, int]] = []
    gate = threading.Barrier(4)

    def work(name: str) -> None:
        store = Store(open_database(world.url, "holdfast"), clock=world.clock)
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


def test_list_owned_returns_the_runs_of_a_session_in_any_state(world):
    world.session("w")
    world.session("v")
    running, cancelled = world.running("w"), world.running("w")
    world.running("v")
    world.store.actions.cancel(cancelled.id, CANCELLED)
    assert sorted(world.store.claims.list_owned("w")) == sorted(
        [(running.id, 1, "running"), (cancelled.id, 1, "cancelled")]
    )
    world.end("w", running)
    assert world.store.claims.list_owned("w") == [(cancelled.id, 1, "cancelled")]


def test_lanes_are_active_while_a_run_is_ready_or_running(world):
    world.session("w")
    busy = world.store.claims.has_active
    world.lane()
    assert not busy([world.lane()])
    world.add(delay=SECOND)
    assert not busy([world.lane()])
    claim = world.running("w")
    assert busy([world.lane()])
    assert not busy([world.lane("other")])
    world.end("w", claim)
    assert not busy([world.lane()])


def test_runs_that_another_worker_has_locked_are_skipped_and_the_next_are_claimed(postgres_url):
    world = World(postgres_url)
    world.session("w")
    ids = [world.add() for _ in range(9)]
    with psycopg.connect(postgres_url) as other:
        first = "(select seq from holdfast.runs order by seq limit 4)"
        other.execute(f"select 1 from holdfast.runs where seq in {first} for no key update")
        assert [claim.id for claim in world.claim("w", 4)] == ids[4:8], "as many as were wanted, and no more"
    assert [claim.id for claim in world.claim("w", 8)] == [*ids[:4], ids[8]]
    world.close()


class TestPickingWithoutALock:
    """On SQLite runs are picked before the lock is taken, and other writes may happen in between."""

    @pytest.fixture
    def world(self, sqlite_url):
        world = World(sqlite_url)
        yield world
        world.close()

    @pytest.fixture
    def between(self, world, monkeypatch):
        """A function that has something happen between the pick and the lock of the next claim."""

        def let(happen):
            real = world.store.claims._execute
            calls = []

            def one(purpose, name, /, **given):
                found = real(purpose, name, **given)
                if name == "pick_claimable" and not calls:
                    calls.append(name)
                    happen()
                return found

            monkeypatch.setattr(world.store.claims, "_execute", one)

        return let

    def test_runs_claimed_by_another_process_since_the_pick_are_not_claimed_twice(self, world, between):
        world.session("w")
        world.session("v")
        ids = [world.add() for _ in range(5)]
        other = world.another_store().claims
        between(lambda: taken.extend(other.claim("v", [world.lane()], 3)))
        taken = []
        assert [claim.id for claim in world.claim("w", 4)] == ids[3:]
        assert [claim.id for claim in taken] == ids[:3]
        assert [world.row(id)["fence"] for id in ids] == [1] * 5

    def test_if_all_picked_runs_were_claimed_the_next_are_picked_under_the_lock(self, world, between):
        world.session("w")
        world.session("v")
        ids = [world.add() for _ in range(5)]
        other = world.another_store().claims
        between(lambda: other.claim("v", [world.lane()], 2))
        assert [claim.id for claim in world.claim("w", 2)] == ids[2:4]

    def test_a_more_urgent_run_added_since_the_pick_is_claimed_first(self, world, between):
        world.session("w")
        first, second = world.add(), world.add()
        urgent = []
        between(lambda: urgent.append(world.add(priority=1)))
        assert [claim.id for claim in world.claim("w", 1)] == urgent
        assert [claim.id for claim in world.claim("w", 8)] == [first, second]

    @pytest.mark.parametrize("comes", ["urgent", "in another lane", "due", "at an earlier turn"])
    def test_no_run_added_since_the_pick_is_overtaken(self, world, between, comes):
        world.session("w")
        due = world.add(delay=SECOND)
        ids = [world.add(turn=5), world.add(turn=5)]
        came = []
        between(
            {
                "urgent": lambda: came.append(world.add(priority=1)),
                "in another lane": lambda: came.append(world.add(queue="other", priority=1)),
                "due": lambda: world.sql("update {schema}runs set state = 'ready' where state = 'scheduled'"),
                "at an earlier turn": lambda: came.append(world.add(turn=4)),
            }[comes]
        )
        lanes = [world.lane(), world.lane(queue="other")]
        assert [claim.id for claim in world.store.claims.claim("w", lanes, 2)] == [*(came or [due]), ids[0]]

    def test_runs_added_behind_the_picked_ones_cause_no_second_pick(self, world, between, monkeypatch):
        world.session("w")
        ids = [world.add(), world.add()]
        between(lambda: (world.add(), world.add(priority=-1)))
        monkeypatch.setattr(world.store.claims, "_transaction", None)
        assert [claim.id for claim in world.claim("w", 2)] == ids

    def test_changes_of_a_run_since_the_pick_are_seen(self, world, between):
        world.session("w")
        world.session("v")
        id = world.add()
        other = world.another_store()

        def go_and_come():
            (claim,) = other.claims.claim("v", [world.lane()], 1)
            other.attempts.end("v", [end_of(claim, kind="retrying", state="ready", failed=1)])

        between(go_and_come)
        (claim,) = world.claim("w", 1)
        assert (claim.id, claim.fence, claim.attempt, claim.failures) == (id, 2, 2, 1)

    def test_if_the_sums_match_by_coincidence_only_what_was_claimed_is_returned(self, world, between):
        """One went and another came, and their numbers are the same."""
        world.session("w")
        world.session("v")
        came, went, taken = world.add(delay=SECOND), world.add(), world.add(args="[7]", turn=1)
        other = world.another_store().claims

        def swap():
            assert [claim.id for claim in other.claim("v", [world.lane()], 1)] == [went]
            world.sql("update {schema}runs set state = 'ready', records = 1000 where state = 'scheduled'")

        between(swap)
        (claim,) = world.claim("w", 2)
        assert [owned.id for owned in world.store.claims.list_owned("w")] == [taken]
        assert [claim.id for claim in world.claim("w", 2)] == [came]
        row = world.row(taken)
        known = (claim.id, claim.seq, claim.args, claim.turn, claim.fence, claim.attempt, claim.limits)
        assert known == (taken, row["seq"], "[7]", 1, row["fence"], row["attempt"], None)

    @pytest.mark.parametrize("happens", ["pause", "cancel", "close"])
    def test_runs_that_may_no_longer_start_are_not_claimed(self, world, between, happens):
        world.session("w")
        id = world.add()
        between(
            {
                "pause": lambda: world.store.queues.pause(["default"]),
                "cancel": lambda: world.store.actions.cancel(id, CANCELLED),
                "close": lambda: world.store.sessions.close("w"),
            }[happens]
        )
        assert world.claim("w", 8) == []
        assert (world.row(id)["session"], world.row(id)["fence"]) == (None, 0)
