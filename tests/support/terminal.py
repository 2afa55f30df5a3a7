"""Pseudo-terminals for tests."""

from __future__ import annotations

import pty

import pytest


def open_terminal() -> tuple[int, int]:
    """Open a pseudo-terminal and return both of its ends, or skip the test if the machine has none."""
    try:
        return pty.openpty()
    except OSError as error:
        pytest.skip(f"needs a pseudo-terminal: {error}")
