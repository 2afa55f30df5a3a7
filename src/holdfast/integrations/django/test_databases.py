"""Test databases: which ones Django has created, and whether this process runs tests."""

from __future__ import annotations

import os
import sys
from typing import Any

import msgspec
from django.db import connections

PARENT_TEST = "HOLDFAST_DJANGO_TEST"
"""Set in tests, for their child processes: the names of the test databases by alias, as JSON."""

configured: dict[str, dict[str, Any]] = {}
"""The databases of the settings, before Django replaced their names with those of test databases."""
_runs_tests = False
_test_number = 0
_outbox: object = None


def remember_databases() -> None:
    """Remember the databases of the settings, before any test database is created."""
    for alias in connections:
        configured.setdefault(alias, dict(connections.settings[alias]))


def notice_test_database(using: str, **_: Any) -> None:
    """Use a private store if Django has just created a test database, as `manage.py testserver` does too."""
    global _runs_tests
    name = _test_name(using)
    if name is not None and name.startswith(("test_", "file:memorydb_")):
        _runs_tests = True


def use_databases_of_parent() -> None:
    """In a process that a test has started, switch Django to the test databases of that test."""
    if not was_started_by_test():
        return
    remember_databases()
    for alias, name in msgspec.json.decode(os.environ[PARENT_TEST]).items():
        if alias in configured:
            connections.settings[alias]["NAME"] = name


def share_with_children(names: dict[str, str]) -> None:
    """Let processes that this test starts use its test databases."""
    os.environ[PARENT_TEST] = msgspec.json.encode(names).decode()


def runs_tests() -> bool:
    """Return whether this process runs tests or has run some: threads that a test has started may outlive it."""
    global _runs_tests
    if not _runs_tests:
        utils = sys.modules.get("django.test.utils")
        _runs_tests = utils is not None and hasattr(getattr(utils, "_TestState", None), "saved_data")
    return _runs_tests


def was_started_by_test() -> bool:
    """Return whether a test has started this process."""
    return PARENT_TEST in os.environ and not runs_tests()


def _test_name(alias: str) -> str | None:
    """Return the name of the test database that Django uses for an alias, or None if it has none."""
    name = str(connections.settings[alias]["NAME"])
    return None if name == str(configured[alias]["NAME"]) else name


def test_names() -> dict[str, str]:
    """Return the names of all test databases, by alias."""
    return {alias: name for alias in configured if (name := _test_name(alias)) is not None}


def current_test() -> int:
    """Return the number of the current test. Django gives every test a new outbox."""
    global _outbox
    outbox = getattr(sys.modules.get("django.core.mail"), "outbox", None)
    if outbox is not _outbox:
        _outbox = outbox
        start_test()
    return _test_number


def start_test() -> None:
    """Count a test. The pytest plugin calls this, because not all of its tests get a new outbox."""
    global _test_number
    _test_number += 1
