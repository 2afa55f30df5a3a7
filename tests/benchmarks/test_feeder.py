"""The feeder that keeps a backlog for the benchmark `sustained`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.databases import BenchmarkDatabase
from benchmarks.processes import Workers
from benchmarks.suite.sustained import Feeder
from benchmarks.tasks import NOOP
from tests.support.store_harness import StoreHarness

BACKLOG = 30


def nothing() -> None: ...


@pytest.fixture
def feeder(harness: StoreHarness, tmp_path: Path) -> Iterator[Feeder]:
    with closing(BenchmarkDatabase(harness.url, nothing, nothing)) as db:
        db.enqueue(BACKLOG)
        yield Feeder(db, BACKLOG, Workers(tmp_path))


def test_claimed_jobs_are_replaced_and_count_as_done_when_they_end(harness, feeder):
    session = harness.session("w")
    for done in (0, 16, 32):
        assert feeder.count_done() == done
        claims = harness.claim(session, 16, [NOOP])
        feeder.feed()
        assert (len(claims), feeder.enqueued, feeder.count_done()) == (16, BACKLOG + done + 16, done)
        for claim in claims:
            harness.end(session, claim)


def test_counting_resumes_at_the_first_ready_job(harness, feeder):
    session = harness.session("w")
    for _ in range(2):
        harness.claim(session, 16, [NOOP])
        feeder.feed()
        assert [(feeder.front,)] == harness.sql("select min(turn) from {schema}runs where state = 'ready'")


def test_an_empty_backlog_is_refilled(harness, feeder):
    session = harness.session("w")
    while harness.claim(session, 16, [NOOP]):
        pass
    assert feeder.count_done() == 0
    feeder.feed()
    assert (feeder.enqueued, feeder.count_done()) == (2 * BACKLOG, 0)


def test_a_slightly_smaller_backlog_is_not_refilled(harness, feeder):
    harness.claim(harness.session("w"), 8, [NOOP])
    feeder.feed()
    assert feeder.enqueued == BACKLOG
