"""Fixtures for tests of budgets, on a worker inside the test's own process."""

from tests.engine.conftest import app, clock, ledger, make_app, timed_app  # noqa: F401
