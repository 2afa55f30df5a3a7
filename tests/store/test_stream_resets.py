"""Which chunks of a stream no longer count, because the code that wrote them ran again."""

from __future__ import annotations

import pytest

from holdfast.model.run import StreamReset
from holdfast.store.commands import WriteCommand
from tests.support.store_harness import token_of
from tests.support.stream_programs import check_program

STEP = "ask-1:0123456789abcdef#1"
OTHER = "tell-1:0123456789abcdef#1"


def write(harness, claim, data, step=STEP, number=1, serial=1):
    harness.write("w", WriteCommand(token_of(claim), None, step, claim.attempt, data, step, number, serial))


def write_body(harness, claim, number):
    key = f"$write#{number}"
    harness.write("w", WriteCommand(token_of(claim), number, key, claim.attempt, f"body {number}", serial=number))


def resets(harness, claim):
    return [chunk.reset for chunk in harness.store.queries.chunks(claim.id, None, 0)]


@pytest.fixture
def claim(harness):
    harness.session("w")
    return harness.running("w")


def again(harness, claim):
    """Hand the run back and claim it again."""
    harness.end("w", claim, "handed_back")
    (claim,) = harness.claim("w")
    return claim


def test_the_first_chunk_of_a_second_try_replaces_those_of_the_first(harness, claim):
    for n, (data, number) in enumerate([("a", 1), ("b", 1), ("c", 2), ("d", 2), ("e", 3)], 1):
        write(harness, claim, data, number=number, serial=n)
    assert resets(harness, claim) == [None, None, StreamReset(0, 3, STEP), None, StreamReset(0, 5, STEP)]


def test_the_first_chunk_after_a_crash_replaces_only_those_of_its_own_step(harness, claim):
    write_body(harness, claim, 1)
    write(harness, claim, "a", serial=1)
    write(harness, claim, "b", OTHER, serial=2)
    claim = again(harness, claim)
    write(harness, claim, "c", serial=1)
    write_body(harness, claim, 2)
    write(harness, claim, "d", serial=2)
    write(harness, claim, "e", OTHER, serial=3)
    assert resets(harness, claim) == [
        None, None, None, StreamReset(0, 4, STEP), None, None, StreamReset(0, 7, OTHER),
    ]  # fmt: skip


def test_a_step_of_the_same_name_after_a_restart_replaces_nothing_but_its_own_tries(harness, claim):
    write(harness, claim, "a")
    harness.end("w", claim, "restarted", in_tree=True, args="[[],{}]")
    (claim,) = harness.claim("w")
    write(harness, claim, "b")
    write(harness, claim, "c", number=2, serial=2)
    assert resets(harness, claim) == [None, None, StreamReset(1, 3, STEP)]


def test_a_run_that_starts_over_replaces_everything(harness, claim):
    write_body(harness, claim, 1)
    write(harness, claim, "a")
    harness.end("w", claim, "failed", in_tree=True)
    harness.store.actions.retry(claim.id, args="[[1],{}]")
    (claim,) = harness.claim("w")
    write(harness, claim, "b", OTHER)
    write(harness, claim, "c", OTHER, serial=2)
    assert resets(harness, claim) == [None, None, StreamReset(0, 3, None, everything=True), None]


def test_chunks_of_an_older_release_are_told_apart_by_attempt_and_try(harness, claim):
    write(harness, claim, "a")
    write(harness, claim, "b", serial=2)
    write(harness, claim, "c", number=2, serial=3)
    harness.sql("update {schema}chunks set fence = null, generation = null, serial = null")
    claim = again(harness, claim)
    write(harness, claim, "d")
    assert resets(harness, claim) == [None, None, StreamReset(0, 3, STEP), StreamReset(0, 4, STEP)]


def test_a_chunk_whose_reply_got_lost_is_stored_once(harness, claim):
    def command(data, serial, step=STEP):
        return WriteCommand(token_of(claim), None, step, 1, data, step, 1, serial)

    body = WriteCommand(token_of(claim), 1, "$write#1", 1, "body 1", serial=1)
    batch = [command("a", 1), command("b", 2), body]
    harness.write("w", *batch)
    harness.write("w", *batch)
    harness.write("w", *batch, command("d", 4, OTHER), command("c", 3))  # serials of two steps may cross
    harness.write("w", command("c", 3))
    assert [chunk.data for chunk in harness.store.queries.chunks(claim.id, None, 0)] == ["a", "b", "body 1", "d", "c"]


def test_a_page_of_chunks_is_bounded_by_its_bytes_and_has_at_least_one(harness, claim):
    for n in range(1, 5):
        write(harness, claim, "x" * 100, serial=n)

    def page(after, size):
        return [chunk.seq for chunk in harness.store.queries.chunks(claim.id, None, after, size)]

    assert (page(0, 1), page(0, 101), page(1, 100), page(3, 1), page(4, 1)) == ([1], [1, 2], [2], [4], [])


@pytest.mark.parametrize("seed", range(0, 12, 3))
def test_readers_that_reconnect_have_exactly_what_counts(harness, seed):
    """Caught by it: a reset left out, one that drops too much, a chunk stored twice (`tests/proof/bugs.py`)."""
    for each in range(seed, seed + 3):
        check_program(harness, each)


@pytest.mark.slow
def test_readers_of_many_runs_have_exactly_what_counts(harness):
    for seed in range(1000, 1400):
        check_program(harness, seed)
