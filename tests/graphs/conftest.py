"""Fixtures for tests of graphs, with a worker in the test process."""

from __future__ import annotations

import pytest

from holdfast import Holdfast
from tests.engine.conftest import app, clock, ledger, make_app, timed_app  # noqa: F401
from tests.support.graphs import Tasks
from tests.support.ledger import Ledger


@pytest.fixture
def tasks(app: Holdfast, ledger: Ledger) -> Tasks:  # noqa: F811
    return Tasks(app, ledger)


@pytest.fixture
def timed_tasks(timed_app: Holdfast, ledger: Ledger) -> Tasks:  # noqa: F811
    """The same in an app whose database uses the clock of the test."""
    return Tasks(timed_app, ledger)
