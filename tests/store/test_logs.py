"""Log lines in the store: fenced, written once, counted from the first claim on, bounded."""

from __future__ import annotations

import pytest

from holdfast.model.run_logs import LogFilter
from holdfast.store.logs import LogWrites, NewLogs
from tests.support.store_harness import StoreHarness, end_of

EVERY_LINE = LogFilter()


def group(claim, n, *texts, before=0, dropped=0):
    """Build a group of lines; `before` is the number of lines of earlier groups of the claim."""
    data = "[" + ",".join(f'[1800000000.5,20,"shop","{text}",null]' for text in texts) + "]"
    last = before + dropped + len(texts)
    return NewLogs(claim.id, claim.fence, n, claim.attempt, len(texts), len(data), last, last * len(data), data)


def writes(*groups, max_lines=100, max_bytes=10_000_000):
    return LogWrites(groups, max_lines, max_bytes)


def lines(harness: StoreHarness, run: str):
    return harness.store.logs.page(run, None, EVERY_LINE)


def shown(harness: StoreHarness, run: str):
    return [(line.seq, line.message) for line in lines(harness, run)]


@pytest.fixture
def session(harness: StoreHarness) -> str:
    return harness.session("a")


def test_a_repeated_write_stores_nothing_again(harness, session):
    claim = harness.running(session)
    for _ in range(2):
        harness.store.logs.record(session, writes(group(claim, 1, "one", "two")))
    harness.store.logs.record(session, writes(group(claim, 1, "one", "two"), group(claim, 2, "three", before=2)))
    assert shown(harness, claim.id) == [(1, "one"), (2, "two"), (3, "three")]
    assert lines(harness, claim.id).dropped == 0


def test_lines_of_a_lost_claim_or_an_expired_session_are_refused(harness, session):
    claim, other = harness.running(session), harness.running(session)
    harness.store.actions.cancel(claim.id, '{"code":"cancelled"}')
    harness.store.logs.record(session, writes(group(claim, 1, "late"), group(other, 1, "valid")))
    assert (shown(harness, claim.id), shown(harness, other.id)) == ([], [(1, "valid")])
    harness.clock.advance(61)
    harness.store.logs.record(session, writes(group(other, 2, "after its lease", before=1)))
    assert shown(harness, other.id) == [(1, "valid")]


@pytest.mark.parametrize("in_tree", [False, True])
def test_the_last_lines_are_written_with_the_end_or_not_at_all(harness, session, in_tree):
    done, lost = harness.running(session), harness.running(session)
    harness.store.actions.cancel(lost.id, '{"code":"cancelled"}')
    last = writes(group(done, 1, "one"), group(lost, 1, "late"))
    ends = [end_of(done, in_tree=in_tree), end_of(lost, in_tree=in_tree)]
    assert harness.store.attempts.end(session, ends, logs=last) == {(done.id, done.fence)}
    assert harness.store.attempts.end(session, ends, logs=last) == {(done.id, done.fence)}, "a repeat"
    assert (shown(harness, done.id), shown(harness, lost.id)) == ([(1, "one")], [])


def test_lines_are_numbered_on_from_earlier_claims(harness, session):
    claim = harness.running(session)
    harness.store.attempts.end(
        session, [end_of(claim, "retrying", state="ready")], logs=writes(group(claim, 1, "a", "b"))
    )
    (again,) = harness.claim(session)
    assert again.id == claim.id
    harness.store.logs.record(session, writes(group(again, 1, "c", dropped=3)))
    assert shown(harness, claim.id) == [(1, "a"), (2, "b"), (6, "c")]
    assert lines(harness, claim.id).dropped == 3


def test_the_oldest_groups_of_a_long_log_are_deleted(harness, session):
    claim = harness.running(session)
    for n in range(1, 11):
        one = group(claim, n, f"{n}a", f"{n}b", before=2 * n - 2)
        harness.store.logs.record(session, writes(one, max_lines=5))
    assert [message for _, message in shown(harness, claim.id)] == ["9a", "9b", "10a", "10b"]
    assert lines(harness, claim.id).dropped == 16


def test_foreign_data_is_shown_as_unreadable(harness, session):
    claim = harness.running(session)
    harness.store.logs.record(session, writes(group(claim, 1, "one")))
    for data in ("no json", '[["later",1,2,3,4]]', '[[1e300,20,"a","far future",null]]', "~z:xx"):
        harness.user_sql(f"update {'holdfast.' if harness.on_postgres else 'holdfast_'}logs set data = '{data}'")
        (line,) = lines(harness, claim.id)
        assert "far future" in line.message or "can't be read" in line.message
