"""Who keeps jobs waiting while `sustained` is measured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.processes import Workers
from benchmarks.suite.sustained import Feeder
from benchmarks.databases import BenchmarkDatabase
from benchmarks.tasks import NOOP
from tests.support.world import World

WAITING = 30


def nothing() -> None: ...


@pytest.fixture
def feeder(world: World, tmp_path: Path) -> Iterator[Feeder]:
    with closing(BenchmarkDatabase(world.url, nothing, nothing)) as tables:
        tables.fill(WAITING)
        yield Feeder(tables, WAITING, Workers(tmp_path))


def test_what_was_claimed_is_replaced_and_counts_as_done_when_it_has_ended(world, feeder):
    session = world.session("w")
    for done in (0, 16, 32):
        assert feeder.completed() == done
        claims = world.claim(session, 16, [NOOP])
        feeder.feed()
        assert (len(claims), feeder.fed, feeder.completed()) == (16, WAITING + done + 16, done)
        for claim in claims:
            world.end(session, claim)


def test_looks_go_on_from_the_first_that_waits(world, feeder):
    session = world.session("w")
    for _ in range(2):
        world.claim(session, 16, [NOOP])
        feeder.feed()
        assert [(feeder.front,)] == world.sql("select min(turn) from {schema}runs where state = 'ready'")


def test_a_worker_that_has_run_dry_is_fed(world, feeder):
    session = world.session("w")
    while world.claim(session, 16, [NOOP]):
        pass
    assert feeder.completed() == 0
    feeder.feed()
    assert (feeder.fed, feeder.completed()) == (2 * WAITING, 0)


def test_few_that_are_missing_are_left_for_later(world, feeder):
    world.claim(world.session("w"), 8, [NOOP])
    feeder.feed()
    assert feeder.fed == WAITING
