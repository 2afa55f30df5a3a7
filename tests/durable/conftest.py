"""Fixtures for tests of durable functions, on a worker inside the test's own process."""

from __future__ import annotations

import pytest

from tests.engine.conftest import app, clock, ledger, make_app, timed_app  # noqa: F401
from tests.support.durable import Effects
from tests.support.ledger import Ledger


@pytest.fixture
def effects(ledger: Ledger) -> Effects:  # noqa: F811
    return Effects(ledger)
