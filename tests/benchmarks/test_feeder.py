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
from tests.support.world import World

BACKLOG = 30


def nothing() -> None: ...


@pytest.fixture
def feeder(world: World, tmp_path: Path) -> Iterator[Feeder]:
    with closing(BenchmarkDatabase(world.url, nothing, nothing)) as db:
        db.enqueue(BACKLOG)
        yield Feeder(db, BACKLOG, Workers(tmp_path))


def test_claimed_jobs_are_replaced_and_count_as_done_when_they_end(world, feeder):
    session = world.session("w")
    for done in (0, 16, 32):
        assert feeder.count_done() == done
        claims = world.claim(session, 16, [NOOP])
        feeder.feed()
        assert (len(claims), feeder.enqueued, feeder.count_done()) == (16, BACKLOG + done + 16, done)
        for claim in claims:
            world.end(session, claim)


def test_counting_resumes_at_the_first_ready_job(world, feeder):
    session = world.session("w")
    for _ in range(2):
        world.claim(session, 16, [NOOP])
        feeder.feed()
        assert [(feeder.front,)] == world.sql("select min(turn) from {schema}runs where state = 'ready'")


def test_an_empty_backlog_is_refilled(world, feeder):
    session = world.session("w")
    while world.claim(session, 16, [NOOP]):
        pass
    assert feeder.count_done() == 0
    feeder.feed()
    assert (feeder.enqueued, feeder.count_done()) == (2 * BACKLOG, 0)


def test_a_slightly_smaller_backlog_is_not_refilled(world, feeder):
    world.claim(world.session("w"), 8, [NOOP])
    feeder.feed()
    assert feeder.enqueued == BACKLOG
