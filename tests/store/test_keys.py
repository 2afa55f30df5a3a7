"""Idempotency keys and unique names."""

from __future__ import annotations

import threading
from uuid import UUID

import pytest

from holdfast.database import open_database
from holdfast.errors import KeyConflict
from holdfast.store import Store
from tests.support.world import DAY


def finish(world, id):
    """Claim a run and end it."""
    world.session("finisher")
    (claim,) = world.claim("finisher")
    assert claim.id == id
    assert world.end("finisher", claim)


def test_the_same_key_and_request_give_the_same_run(world):
    first = world.add(key="k")
    assert world.add(key="k") == first
    assert world.rows("runs") == 1


def test_the_same_key_gives_the_same_run_after_it_has_ended(world):
    first = world.add(key="k")
    finish(world, first)
    assert world.add(key="k") == first
    assert world.state(first) == "done"


def test_the_same_key_with_another_request_is_a_conflict_that_names_the_run(world):
    first = world.add(key="k", digest="one", args="[[1],{}]")
    before = world.row(first)
    with pytest.raises(KeyConflict, match=f"key 'k' .*{first}") as caught:
        world.add(key="k", digest="two", args="[[2],{}]")
    assert caught.value.run_id == UUID(first)
    assert world.row(first) == before
    assert world.rows("runs") == 1


def test_a_conflict_rejects_the_whole_batch_and_its_other_keys(world):
    world.add(key="k", digest="one")
    batch = [world.new(), world.new(key="new"), world.new(key="k", digest="two"), world.new(unique="u")]
    with pytest.raises(KeyConflict):
        world.store.enqueuer.enqueue(batch)
    assert (world.rows("runs"), world.rows("keys")) == (1, 1)


def test_the_same_key_twice_in_one_batch_is_one_run(world):
    ids = world.store.enqueuer.enqueue([world.new(key="k"), world.new(), world.new(key="k")])
    assert ids[0] == ids[2] != ids[1]
    assert world.rows("runs") == 2


def test_the_same_key_twice_in_one_batch_for_different_requests_is_a_conflict(world):
    with pytest.raises(KeyConflict):
        world.store.enqueuer.enqueue([world.new(key="k", digest="one"), world.new(key="k", digest="two")])
    assert (world.rows("runs"), world.rows("keys")) == (0, 0)


def test_a_key_counts_per_tenant_and_task(world):
    ids = {
        world.add(key="k"),
        world.add(key="k", tenant="acme"),
        world.add(key="k", tenant="other"),
        world.add("another", key="k"),
    }
    assert len(ids) == 4
    assert world.add(key="k", tenant="acme") in ids
    assert world.rows("runs") == 4


def test_a_key_doesnt_count_per_queue(world):
    assert world.add(key="k", queue="a") == world.add(key="k", queue="b")


def test_no_tenant_name_collides_with_another_scope(world):
    assert world.add('b"]', key="k", tenant="a") != world.add("b", key="k", tenant='a",""]')
    assert world.add("task", key="k", tenant="null") != world.add("task", key="k")


def test_a_key_outlives_its_pruned_run(world, clock):
    first = world.add(key="k", keep=1 * DAY)
    finish(world, first)
    clock.advance(2 * 86_400)
    assert world.store.retention.prune() == (1, False)
    assert world.store.queries.run(first) is None
    assert world.add(key="k") == first
    with pytest.raises(KeyConflict):
        world.add(key="k", digest="other")
    assert world.rows("runs") == 0


def test_sixty_four_enqueues_at_once_with_one_key_make_one_run(world):
    world.store.prepare()
    gate = threading.Barrier(64)
    ids: list[str] = []
    faults: list[BaseException] = []

    def enqueue() -> None:
        store = Store(open_database(world.url, "holdfast"), clock=world.clock)
        run = world.new(key="k")
        gate.wait()
        try:
            ids.append(store.enqueuer.enqueue([run])[0])
        except BaseException as fault:
            faults.append(fault)
        finally:
            store.close()

    threads = [threading.Thread(target=enqueue) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert len(ids) == 64
    assert len(set(ids)) == 1
    assert [row[0] for row in world.sql("select cast(id as text) from {schema}runs")] == ids[:1]


def test_a_second_unique_run_is_the_unfinished_first(world):
    first = world.add(unique="u")
    assert world.add(unique="u") == first
    world.session("w")
    (claim,) = world.claim("w")
    assert world.add(unique="u") == first
    world.end("w", claim, "retrying")
    assert world.add(unique="u") == first
    assert world.rows("runs") == 1


@pytest.mark.parametrize("kind", ["done", "failed"])
def test_after_its_end_a_unique_name_is_free_for_a_new_run(world, kind):
    first = world.add(unique="u")
    world.session("w")
    world.end("w", world.claim("w")[0], kind)
    second = world.add(unique="u")
    assert second != first
    assert (world.state(second), world.row(second)["held"]) == ("ready", None)


def test_a_unique_name_counts_per_task_and_tenant(world):
    ids = {world.add(unique="u"), world.add(unique="u", tenant="acme"), world.add("another", unique="u")}
    assert len(ids) == 3


def test_the_same_unique_name_twice_in_one_batch_is_one_run(world):
    ids = world.store.enqueuer.enqueue([world.new(unique="u"), world.new(unique="v"), world.new(unique="u")])
    assert ids[0] == ids[2] != ids[1]
    assert world.rows("runs") == 2


def test_a_key_whose_run_found_its_unique_name_taken_names_the_holder(world):
    holder = world.add(unique="u")
    assert world.add(unique="u", key="k") == holder
    finish(world, holder)
    assert world.add(unique="u", key="k") == holder
    assert world.rows("runs") == 1


def test_one_key_twice_in_a_batch_whose_unique_name_is_taken_names_the_holder_both_times(world):
    holder = world.add(unique="u")
    batch = [world.new(unique="u", key="k"), world.new(unique="u", key="k")]
    assert world.store.enqueuer.enqueue(batch) == [holder, holder]
    assert world.add(unique="u", key="k") == holder
    assert [row[0] for row in world.sql("select cast(run as text) from {schema}keys")] == [holder]


def test_a_repeat_whose_key_was_pointed_at_the_unique_holder_gives_the_holder_again(world):
    holder = world.add(unique="u")
    batch = [world.new(unique="u", key="k")]
    assert world.store.enqueuer.enqueue(batch) == world.store.enqueuer.enqueue(batch) == [holder]
    assert world.rows("runs") == 1


def test_sixteen_enqueues_at_once_with_one_unique_name_make_one_run(world):
    world.store.prepare()
    gate = threading.Barrier(16)
    ids: list[str] = []

    def enqueue() -> None:
        store = Store(open_database(world.url, "holdfast"), clock=world.clock)
        run = world.new(unique="u")
        gate.wait()
        ids.append(store.enqueuer.enqueue([run])[0])
        store.close()

    threads = [threading.Thread(target=enqueue) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ids) == 16
    assert len(set(ids)) == 1
    assert world.rows("runs") == 1
