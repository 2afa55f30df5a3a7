"""A control on an empty database with a clock of the test's own, once per database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.control import Control
from tests.support.world import Clock, World


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    world = World(database_url)
    yield world
    world.close()


@pytest.fixture
def clock(world: World) -> Clock:
    return world.clock


@pytest.fixture
def control(world: World) -> Control:
    return Control(world.store)
