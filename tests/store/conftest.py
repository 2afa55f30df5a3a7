"""Fixtures of the store's contract suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.world import Clock, World


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    """A store on an empty database, once per database."""
    world = World(database_url)
    yield world
    world.close()


@pytest.fixture
def clock(world: World) -> Clock:
    return world.clock
