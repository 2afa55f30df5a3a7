"""A control on an empty database with a clock of the test's own, once per database."""

from __future__ import annotations

import pytest

from holdfast.control import Control
from tests.support.world import World


@pytest.fixture
def control(world: World) -> Control:
    return Control(world.store)
