"""Fixtures for tests of schedules and triggers, on a worker inside the test's own process."""

from tests.engine.conftest import app, clock, ledger, make_app, timed_app  # noqa: F401
