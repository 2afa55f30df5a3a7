"""A control on an empty database with the test's own clock, once per database."""

from __future__ import annotations

import pytest

from holdfast.control import Control
from tests.support.store_harness import StoreHarness


@pytest.fixture
def control(harness: StoreHarness) -> Control:
    return Control(harness.store)
