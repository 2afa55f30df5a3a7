"""A control on an empty database with the test's own clock, once per database."""

from __future__ import annotations

import pytest

from holdfast.control import Control
from tests.support.world import World


@pytest.fixture
def control(world: World) -> Control:
    return Control(world.store)
