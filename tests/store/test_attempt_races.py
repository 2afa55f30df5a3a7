"""Ends of attempts that race with another change of the same row."""

from __future__ import annotations

import threading

import psycopg
import pytest

from tests.support.store_harness import StoreHarness
from tests.support.wait_until import wait_until


@pytest.fixture
def harness(postgres_url):
    harness = StoreHarness(postgres_url)
    yield harness
    harness.close()


@pytest.mark.parametrize(("change", "counts"), [("priority = 5", True), ("fence = fence + 1", False)])
def test_an_end_that_waited_for_another_change_of_the_row_counts_if_its_claim_is_valid(
    harness, postgres_url, change, counts
):
    harness.session("w")
    claim = harness.running("w")
    answers = []
    waiting = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    with psycopg.connect(postgres_url) as other, psycopg.connect(postgres_url, autocommit=True) as watcher:
        other.execute(f"update holdfast.runs set {change} where id = %s", [claim.id])
        ending = threading.Thread(target=lambda: answers.append(harness.end("w", claim)))
        ending.start()
        wait_until(lambda: watcher.execute(waiting).fetchone(), what="the end waits for the other change")
        other.commit()
        ending.join(30)
    assert answers == [counts]
    assert harness.state(claim.id) == ("done" if counts else "running")
    assert harness.kinds(claim.id) == (["done"] if counts else [])
