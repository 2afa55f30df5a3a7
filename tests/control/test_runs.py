"""Runs for operators: find by prefix, details, cancel and retry."""

from __future__ import annotations

from uuid import UUID

import pytest

from holdfast.control.history_text import describe_entry
from holdfast.errors import KeyConflict, RunFinished, RunNotFound
from tests.support.store_harness import CRASHED, SECOND, end_of

FIRST = "0199aaaa-0000-7000-8000-000000000001"
SECOND_ONE = "0199aaaa-0000-7000-8000-00000000ffff"
THIRD = "0199bbbb-0000-7000-8000-000000000001"


@pytest.fixture
def three(harness):
    for id in (FIRST, SECOND_ONE, THIRD):
        run = harness.new()
        run.id = id
        harness.store.enqueuer.enqueue([run])


@pytest.mark.parametrize(
    "given", ["0199b", "0199BBBB", "0199bbbb-", "0199bbbb-0000-7", "0199bbbb00007", THIRD, f" {THIRD} "]
)
def test_a_run_is_found_by_as_much_of_its_id_as_no_other_has(control, three, given):
    assert control.runs.find(given) == UUID(THIRD)


def test_last_digit_can_disambiguate(control, three):
    assert control.runs.find(FIRST[:-1]) == UUID(FIRST)
    assert control.runs.find(SECOND_ONE[:-1]) == UUID(SECOND_ONE)


def test_ambiguous_prefix_lists_candidates(control, three):
    with pytest.raises(RunNotFound, match="several run ids start with 0199a") as raised:
        control.runs.find("0199a")
    assert FIRST in str(raised.value)
    assert SECOND_ONE in str(raised.value)
    assert THIRD not in str(raised.value)


def test_few_of_many_candidates_are_listed(control, harness):
    harness.add_many(20)
    beginning = str(control.runs.page(limit=1)[0].id)[:4]
    with pytest.raises(RunNotFound, match="…") as raised:
        control.runs.find(beginning)
    assert str(raised.value).count("ready") == 5


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("019", "too short"),
        ("", "not a run id"),
        ("0199c", "no run id starts"),
        ("xyzw1", "not a run id"),
        ("%", "not a run id"),
    ],
)
def test_invalid_run_id_is_reported(control, three, given, says):
    with pytest.raises(RunNotFound, match=says):
        control.runs.find(given)


def test_full_id_is_accepted_without_lookup(control, three):
    id = control.runs.find("0199cccc-0000-7000-8000-000000000001")
    for verb in (control.runs.details, control.runs.info, control.runs.cancel, control.runs.retry):
        with pytest.raises(RunNotFound, match="0199cccc"):
            verb(id)


def test_details_tell_all_there_is_to_know(control, harness, clock):
    harness.session("w")
    id = harness.add(
        args='{"to":"ada"}', options='{"timeout":5}', unique="u", tenant="acme", tags='["a","b"]',
        deadline_in=60 * SECOND, delay=10 * SECOND, priority=7,
    )  # fmt: skip
    details = control.runs.details(UUID(id))
    assert details.args == {"to": "ada"}
    assert details.options == {"timeout": 5}
    assert (details.unique, details.info.tenant, details.info.tags) == ("u", "acme", ("a", "b"))
    assert (details.due_at - details.info.created_at).total_seconds() == 10
    assert (details.deadline - details.info.created_at).total_seconds() == 60
    assert details.expires_at is None
    assert [entry.kind for entry in details.history] == ["enqueued"]


def test_details_of_a_finished_run_have_result_and_story(control, harness):
    harness.session("w")
    claim = harness.running("w")
    harness.end("w", claim, result='{"n":1}')
    details = control.runs.details(UUID(claim.id))
    assert details.info.result == {"n": 1}
    assert details.expires_at > details.info.finished_at
    assert [entry.kind for entry in details.history] == ["enqueued", "started", "done"]


def test_pages_go_on_where_the_last_one_ended(control, harness):
    ids = harness.add_many(5)
    first = control.runs.page(limit=3)
    rest = control.runs.page(limit=3, after=first.after)
    assert [str(run.id) for run in [*first, *rest]] == ids[::-1]
    assert rest.after is None


def test_cancel_keeps_its_reason_and_says_whether_it_ended_the_run(control, harness):
    id = UUID(harness.add())
    assert control.runs.cancel(id, "ordered twice")
    assert not control.runs.cancel(id, "again")
    info = control.runs.info(id)
    assert (info.state, info.error.message) == ("cancelled", "ordered twice")


def test_retry_says_whether_it_changed_anything(control, harness):
    id = UUID(harness.add(unique="u"))
    assert not control.runs.retry(id)
    control.runs.cancel(id)
    assert control.runs.retry(id)
    assert control.runs.info(id).state == "ready"


def test_unretryable_run_is_rejected(control, harness):
    harness.session("w")
    claim = harness.running("w")
    harness.end("w", claim)
    with pytest.raises(RunFinished, match="is done"):
        control.runs.retry(UUID(claim.id))
    old = UUID(harness.add(unique="u"))
    control.runs.cancel(old)
    harness.add(unique="u")
    with pytest.raises(KeyConflict, match="unique name"):
        control.runs.retry(old)


@pytest.mark.parametrize(
    ("excused", "text"),
    [(False, "its process had 2 runs, none is charged"), (True, "the database was unreachable, not charged")],
)
def test_history_says_with_how_many_runs_a_worker_was_lost(control, harness, excused, text):
    first, _ = harness.add(), harness.add()
    harness.session("w")
    claims = harness.claim("w", 2)
    ends = [end_of(claim, "crashed", error=CRASHED, runs_in_process=0 if excused else 2) for claim in claims]
    harness.store.attempts.crash("w", ends)
    (lost,) = [each for each in control.runs.history(UUID(first)) if each.kind == "worker_lost"]
    assert (describe_entry(lost), lost.data.get("error")) == ([text], None)
