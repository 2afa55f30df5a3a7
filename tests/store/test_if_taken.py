"""What an enqueue does if an unfinished run has its unique name: return, queue, replace or cancel."""

from __future__ import annotations

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.errors import ConfigError
from tests.support.manual_transaction import BlockedCall, ManualTransaction
from tests.support.store_harness import CANCELLED, SECOND, StoreHarness


def call(harness: StoreHarness, number: int, if_taken: str, **more: object) -> str:
    return harness.add(unique="crm", if_taken=if_taken, args=f"[[{number}],{{}}]", **more)


def tick(harness: StoreHarness) -> None:
    harness.store.timers.start_queued()
    harness.store.timers.release_held()


def args_of(harness: StoreHarness, id: str) -> int:
    return int(harness.row(id)["args"].partition("]")[0][2:])


def test_queue_lets_one_more_run_wait_for_the_end_of_the_holder(harness):
    harness.session("w")
    first = harness.running("w", unique="crm")
    second = call(harness, 2, "queue")
    assert second != first.id
    assert call(harness, 3, "queue") == second
    assert (harness.row(second)["held"], args_of(harness, second)) == ("queued", 2)
    tick(harness)
    assert harness.claim("w", 8) == []
    assert harness.end("w", first, "done")
    tick(harness)
    assert [claim.id for claim in harness.claim("w", 8)] == [second]
    assert call(harness, 4, "return") == second, "it has the name now"


def test_a_queued_run_waits_until_the_code_of_the_holder_has_stopped(harness):
    harness.session("w")
    first = harness.running("w", unique="crm")
    second = call(harness, 2, "queue")
    harness.store.actions.cancel(first.id, CANCELLED)
    tick(harness)
    assert (harness.claim("w", 8), harness.row(second)["held"]) == ([], "quiescing")
    harness.store.attempts.release("w", [(first.id, first.fence)])
    tick(harness)
    assert [claim.id for claim in harness.claim("w", 8)] == [second]


def test_replace_gives_the_run_that_waits_the_newest_arguments(harness):
    harness.session("w")
    first = call(harness, 1, "replace")
    assert call(harness, 2, "replace", priority=3) == first
    assert (args_of(harness, first), harness.row(first)["priority"]) == (2, 3)
    (claim,) = harness.claim("w")
    assert claim.args == "[[2],{}]"
    second = call(harness, 3, "replace")
    assert second != first
    assert call(harness, 4, "replace") == second
    assert (args_of(harness, first), args_of(harness, second)) == (2, 4)


def test_newer_arguments_never_run_before_those_that_they_replace(harness):
    harness.session("w")
    first = harness.running("w", unique="crm")
    second = call(harness, 2, "replace")
    assert harness.end("w", first, "done")  # nothing has given the name to the second run yet
    assert call(harness, 3, "replace") == second
    assert harness.rows("runs") == 2
    assert args_of(harness, second) == 3


def test_cancel_ends_the_run_and_starts_the_next_once_its_code_has_stopped(harness):
    harness.session("w")
    first = harness.running("w", unique="crm")
    waiting = call(harness, 2, "queue")
    second = call(harness, 3, "cancel")
    assert harness.states([first.id, waiting]) == ["cancelled", "cancelled"]
    assert "newer run" in harness.row(first.id)["error"]
    tick(harness)
    assert harness.claim("w", 8) == [], "two would run at once"
    harness.store.attempts.release("w", [(first.id, first.fence)])
    tick(harness)
    assert [claim.id for claim in harness.claim("w", 8)] == [second]


def test_cancel_waits_for_the_compensations_of_the_run(harness):
    harness.session("w")
    first = harness.running("w", unique="crm")
    harness.sql("update {schema}runs set undos = 1")
    second = call(harness, 2, "cancel")
    assert (harness.row(first.id)["ending"], harness.row(second)["held"]) == ("cancelled", "queued")
    third = call(harness, 3, "cancel")
    assert (harness.state(second), harness.row(third)["held"]) == ("cancelled", "queued")


def test_cancel_replaces_a_run_that_waits_too(harness):
    first = call(harness, 1, "return", delay=SECOND)
    second = call(harness, 2, "cancel")
    assert harness.states([first, second]) == ["cancelled", "ready"]


def test_a_batch_creates_one_run_for_each_name_that_replaces(harness):
    runs = [harness.new(unique="crm", if_taken="cancel", args=f"[[{number}],{{}}]") for number in range(3)]
    assert harness.store.enqueuer.enqueue(runs) == [runs[2].id] * 3
    assert harness.rows("runs") == 1


def test_a_retried_run_that_waited_for_the_name_waits_again(harness):
    harness.session("w")
    first = harness.running("w", unique="crm")
    second = call(harness, 2, "queue")
    harness.store.actions.cancel(second, CANCELLED)
    assert harness.store.actions.retry(second)
    tick(harness)
    assert harness.claim("w", 8) == []
    assert harness.end("w", first, "done")
    tick(harness)
    assert [claim.id for claim in harness.claim("w", 8)] == [second]


def test_a_retried_run_keeps_the_arguments_that_its_checkpoints_belong_to(harness):
    harness.session("w")
    first = harness.running("w", unique="crm", args="[[1],{}]")
    assert harness.end("w", first, "failed")
    harness.store.actions.retry(first.id)
    assert call(harness, 2, "replace") != first.id
    assert args_of(harness, first.id) == 1


def test_a_repeat_after_a_lost_reply_returns_the_same_run(harness):
    harness.session("w")
    harness.running("w", unique="crm")
    for if_taken in ("queue", "cancel"):
        run = harness.new(unique="crm", if_taken=if_taken)
        assert harness.store.enqueuer.enqueue([run]) == harness.store.enqueuer.enqueue([run]) == [run.id]


def test_a_waiting_run_gets_its_name_although_an_enqueue_takes_it_at_the_same_time(postgres_url):
    harness = StoreHarness(postgres_url)
    harness.session("w")
    first = harness.running("w", unique="crm")
    second = call(harness, 2, "queue")
    assert harness.end("w", first, "done")
    other = ManualTransaction(harness)
    third = other.enqueue(harness.new(unique="crm"))
    timers = BlockedCall(harness, harness.store.timers.start_queued)
    replacing = BlockedCall(harness, lambda: call(harness, 4, "replace"))
    other.commit()
    assert timers.result() == 0
    assert replacing.result() == third
    assert harness.row(second)["held"] == "queued"
    harness.close()


def test_cancel_is_refused_in_a_callers_transaction(postgres_url):
    with Holdfast(postgres_url) as app:
        task = app.remote("task").options(unique="crm", if_taken="cancel")
        with psycopg.connect(postgres_url) as connection, pytest.raises(ConfigError, match="connection="):
            task.options(connection=connection).enqueue()
