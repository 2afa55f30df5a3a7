"""Idempotency keys and unique names."""

from __future__ import annotations

import json
import threading
from uuid import UUID

import pytest

from holdfast.database import open_database
from holdfast.errors import KeyConflict
from holdfast.store import Store
from holdfast.store.enqueue import key_steps
from tests.support.store_harness import DAY


def finish(harness, id, session="finisher"):
    """Claim a run and end it."""
    harness.session(session)
    (claim,) = harness.claim(session)
    assert claim.id == id
    assert harness.end(session, claim)


def test_the_same_key_and_request_give_the_same_run(harness):
    first = harness.add(key="k")
    assert harness.add(key="k") == first
    assert harness.rows("runs") == 1


def test_the_same_key_gives_the_same_run_after_it_has_ended(harness):
    first = harness.add(key="k")
    finish(harness, first)
    assert harness.add(key="k") == first
    assert harness.state(first) == "done"


def test_the_same_key_with_another_request_is_a_conflict_that_names_the_run(harness):
    first = harness.add(key="k", digest="one", args="[[1],{}]")
    before = harness.row(first)
    with pytest.raises(KeyConflict, match=f"key 'k' .*{first}") as caught:
        harness.add(key="k", digest="two", args="[[2],{}]")
    assert caught.value.run_id == UUID(first)
    assert harness.row(first) == before
    assert harness.rows("runs") == 1


def test_a_conflict_rejects_the_whole_batch_and_its_other_keys(harness):
    harness.add(key="k", digest="one")
    batch = [harness.new(), harness.new(key="new"), harness.new(key="k", digest="two"), harness.new(unique="u")]
    with pytest.raises(KeyConflict):
        harness.store.enqueuer.enqueue(batch)
    assert (harness.rows("runs"), harness.rows("keys")) == (1, 1)


def test_the_same_key_twice_in_one_batch_is_one_run(harness):
    ids = harness.store.enqueuer.enqueue([harness.new(key="k"), harness.new(), harness.new(key="k")])
    assert ids[0] == ids[2] != ids[1]
    assert harness.rows("runs") == 2


def test_the_same_key_twice_in_one_batch_for_different_requests_is_a_conflict(harness):
    with pytest.raises(KeyConflict):
        harness.store.enqueuer.enqueue([harness.new(key="k", digest="one"), harness.new(key="k", digest="two")])
    assert (harness.rows("runs"), harness.rows("keys")) == (0, 0)


def test_a_key_counts_per_tenant_and_task(harness):
    ids = {
        harness.add(key="k"),
        harness.add(key="k", tenant="acme"),
        harness.add(key="k", tenant="other"),
        harness.add("another", key="k"),
    }
    assert len(ids) == 4
    assert harness.add(key="k", tenant="acme") in ids
    assert harness.rows("runs") == 4


def test_a_key_doesnt_count_per_queue(harness):
    assert harness.add(key="k", queue="a") == harness.add(key="k", queue="b")


def test_no_tenant_name_collides_with_another_scope(harness):
    assert harness.add('b"]', key="k", tenant="a") != harness.add("b", key="k", tenant='a",""]')
    assert harness.add("task", key="k", tenant="null") != harness.add("task", key="k")


def test_a_key_outlives_its_pruned_run(harness, clock):
    first = harness.add(key="k", keep=1 * DAY)
    finish(harness, first)
    clock.advance(2 * 86_400)
    assert harness.store.retention.prune() == (1, False)
    assert harness.store.queries.run(first) is None
    assert harness.add(key="k") == first
    with pytest.raises(KeyConflict):
        harness.add(key="k", digest="other")
    assert harness.rows("runs") == 0


def test_keys_are_pruned_after_a_time_unless_their_run_is_unfinished(harness, clock):
    ended = harness.add(key="ended")
    finish(harness, ended)
    unfinished = harness.add(key="unfinished")
    clock.advance(86_400)
    young = harness.add(key="young")
    assert harness.store.retention.prune_keys(1 * DAY) is False
    assert harness.rows("keys") == 2
    assert harness.add(key="young") == young
    assert harness.add(key="unfinished") == unfinished
    finish(harness, unfinished, "another")
    assert harness.add(key="ended") != ended
    harness.store.retention.prune_keys(1 * DAY)
    assert harness.add(key="unfinished") == unfinished, "looked at again after a day"
    clock.advance(86_400)
    harness.store.retention.prune_keys(1 * DAY)
    assert harness.add(key="unfinished") != unfinished


def test_keys_are_pruned_in_batches(harness, clock):
    harness.store.enqueuer.enqueue([harness.new(key=f"{n}") for n in range(501)])
    harness.sql("update {schema}runs set state = 'done', finished_at = {now}")
    clock.advance(86_400)
    assert [harness.store.retention.prune_keys(1 * DAY) for _ in range(2)] == [True, False]
    assert harness.rows("keys") == 0


def test_a_key_that_expires_while_it_is_looked_up_is_taken(harness):
    first, second = harness.new(key="k"), harness.new(key="other")
    scope = '[null,"task"]'
    steps = key_steps([first, second])
    assert next(steps)[0] == "add_keys"
    assert steps.send([(scope, "other")])[0] == "find_keys"
    name, parameters = steps.send([])  # the key is no longer there
    assert (name, [row["key"] for row in json.loads(parameters["rows"])]) == ("take_expired_keys", ["k"])
    name, parameters = steps.send([])
    assert (name, [row["key"] for row in json.loads(parameters["rows"])]) == ("add_keys", ["k"])
    with pytest.raises(StopIteration) as end:
        steps.send([(scope, "k")])
    assert end.value.value == {}


def test_sixty_four_enqueues_at_once_with_one_key_make_one_run(harness):
    harness.store.prepare()
    gate = threading.Barrier(64)
    ids: list[str] = []
    faults: list[BaseException] = []

    def enqueue() -> None:
        store = Store(open_database(harness.url, "holdfast"), clock=harness.clock)
        run = harness.new(key="k")
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
    assert [row[0] for row in harness.sql("select cast(id as text) from {schema}runs")] == ids[:1]


def test_a_second_unique_run_is_the_unfinished_first(harness):
    first = harness.add(unique="u")
    assert harness.add(unique="u") == first
    harness.session("w")
    (claim,) = harness.claim("w")
    assert harness.add(unique="u") == first
    harness.end("w", claim, "retrying")
    assert harness.add(unique="u") == first
    assert harness.rows("runs") == 1


@pytest.mark.parametrize("kind", ["done", "failed"])
def test_after_its_end_a_unique_name_is_free_for_a_new_run(harness, kind):
    first = harness.add(unique="u")
    harness.session("w")
    harness.end("w", harness.claim("w")[0], kind)
    second = harness.add(unique="u")
    assert second != first
    assert (harness.state(second), harness.row(second)["held"]) == ("ready", None)


def test_a_unique_name_counts_per_task_and_tenant(harness):
    ids = {harness.add(unique="u"), harness.add(unique="u", tenant="acme"), harness.add("another", unique="u")}
    assert len(ids) == 3


def test_the_same_unique_name_twice_in_one_batch_is_one_run(harness):
    ids = harness.store.enqueuer.enqueue([harness.new(unique="u"), harness.new(unique="v"), harness.new(unique="u")])
    assert ids[0] == ids[2] != ids[1]
    assert harness.rows("runs") == 2


def test_a_key_whose_run_found_its_unique_name_taken_names_the_holder(harness):
    holder = harness.add(unique="u")
    assert harness.add(unique="u", key="k") == holder
    finish(harness, holder)
    assert harness.add(unique="u", key="k") == holder
    assert harness.rows("runs") == 1


def test_one_key_twice_in_a_batch_whose_unique_name_is_taken_names_the_holder_both_times(harness):
    holder = harness.add(unique="u")
    batch = [harness.new(unique="u", key="k"), harness.new(unique="u", key="k")]
    assert harness.store.enqueuer.enqueue(batch) == [holder, holder]
    assert harness.add(unique="u", key="k") == holder
    assert [row[0] for row in harness.sql("select cast(run as text) from {schema}keys")] == [holder]


def test_a_repeat_whose_key_was_pointed_at_the_unique_holder_gives_the_holder_again(harness):
    holder = harness.add(unique="u")
    batch = [harness.new(unique="u", key="k")]
    assert harness.store.enqueuer.enqueue(batch) == harness.store.enqueuer.enqueue(batch) == [holder]
    assert harness.rows("runs") == 1


def test_sixteen_enqueues_at_once_with_one_unique_name_make_one_run(harness):
    harness.store.prepare()
    gate = threading.Barrier(16)
    ids: list[str] = []

    def enqueue() -> None:
        store = Store(open_database(harness.url, "holdfast"), clock=harness.clock)
        run = harness.new(unique="u")
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
    assert harness.rows("runs") == 1
