"""Check that planted bugs are caught by the model, by the simulation or by a test."""

from __future__ import annotations

import pytest

from tests.proof.bugs import BUGS, BY_NAME
from tests.proof.planted import catch_apart, report

MIN_CAUGHT_SHARE = 0.9
SLOW = pytest.mark.slow


def test_at_least_twenty_bugs_have_unique_names():
    assert len(BY_NAME) == len(BUGS) >= 20


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_each_bug_can_be_planted(bug):
    with bug.planted():
        pass


def test_a_fence_that_doesnt_grow_is_caught_by_the_model():
    assert catch_apart("claim-fence").example is not None


def test_claims_that_are_never_released_are_caught_by_the_simulation():
    assert catch_apart("claim-forgotten").seed is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hook-lost", "hook-twice", "hook-alone"])
def test_a_hook_that_is_lost_or_enqueued_twice_is_caught_by_the_simulation(name):
    assert catch_apart(name).seed is not None


@pytest.mark.parametrize(
    "name",
    [
        "claim-stalled",
        "commit-claim-stalled",
        "renew-stalled",
        pytest.param("slots-exceeded", marks=SLOW),
        pytest.param("label-ignored", marks=SLOW),
    ],
)
def test_bugs_of_a_worker_are_caught_by_the_simulation(name):
    assert catch_apart(name).seed is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "reply-lost", "ask-twice", "ask-overtaken", "answer-mixed", "message-skipped", "next-skipped", "topic-repeated",
        "chunk-repeated",
    ],
)  # fmt: skip
def test_bugs_of_asks_topics_and_streams_are_caught_by_the_simulation(name):
    assert catch_apart(name).seed is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["topic-lost", "topic-twice", "inbox-lost", "chunk-twice"])
def test_bugs_of_topics_and_streams_are_caught_by_the_model(name):
    assert catch_apart(name).example is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spend-lost", "spend-unwaited"])
def test_bugs_of_budgets_are_caught_by_the_model(name):
    assert catch_apart(name).example is not None


@pytest.mark.parametrize(
    "name",
    ["charge-everybody", "overtake", *(pytest.param(each, marks=SLOW) for each in ("isolate-early", "age-starves"))],
)
def test_charging_or_overtaking_innocent_runs_is_caught_by_the_model(name):
    assert catch_apart(name).example is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["preference-ignored", "preference-kept"])
def test_bugs_of_preferred_labels_are_caught_by_the_model(name):
    assert catch_apart(name).example is not None


@pytest.mark.parametrize("name", ["debounce-oldest", "key-kept"])
def test_bugs_of_flow_control_are_caught_by_the_model(name):
    assert catch_apart(name).example is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["unique-early", "pause-parked", "batch-acknowledged", "schedule-refired", "slot-twice"]
)
def test_other_bugs_of_flow_control_are_caught(name):
    assert catch_apart(name).by is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "keep-off",
        "resident-stale",
        "chunk-kept",
        "limit-redeclared",
        "keep-same",
        "prune-left",
        "batch-mixed",
        "retry-arguments",
        "retry-kept",
        "line-lost",
        "line-twice",
        "sql-unique-ignored",
        "sql-key-ignored",
        "sql-unchecked",
    ],
)
def test_bugs_that_need_special_conditions_are_caught_by_their_tests(name):
    assert catch_apart(name).test is not None


@pytest.mark.slow
def test_most_of_all_planted_bugs_are_caught(tmp_path):
    caught = [catch_apart(name) for name in BY_NAME]
    (tmp_path / "report.md").write_text("\n".join(report(caught)))
    missed = [one.bug for one in caught if one.by is None]
    assert len(missed) <= (1 - MIN_CAUGHT_SHARE) * len(caught), missed
