"""Messages and deploys in random order: one run per message and subscriber."""

from __future__ import annotations

import pytest

from tests.proof.bugs import BY_NAME
from tests.proof.topic_races import race
from tests.support.store_harness import StoreHarness


@pytest.fixture
def memory_harness():
    harness = StoreHarness("sqlite:///:memory:")
    yield harness
    harness.close()


def test_no_deploy_loses_or_repeats_a_message(memory_harness):
    assert race(memory_harness, 1, 300) >= 300


def test_a_message_that_is_lost_in_a_deploy_is_caught():
    with BY_NAME["topic-lost"].planted():
        harness = StoreHarness("sqlite:///:memory:")
        with pytest.raises(AssertionError, match="lost in a deploy"):
            race(harness, 1, 2000)
        harness.close()


def test_a_message_that_a_subscriber_gets_twice_is_caught():
    with BY_NAME["topic-twice"].planted():
        harness = StoreHarness("sqlite:///:memory:")
        with pytest.raises(AssertionError, match="twice"):
            race(harness, 1, 300)
        harness.close()


@pytest.mark.slow
def test_a_hundred_thousand_messages_race_with_deploys(memory_harness):
    assert race(memory_harness, 1, 100_000) >= 100_000
