"""Recognize error messages that differ only in ids and numbers."""

from __future__ import annotations

import re

PLACEHOLDER = "#"

_VARIABLE = re.compile(
    r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}"  # a UUID
    r"|0x[0-9a-f]+"
    r"|\b(?=\w*\d)(?=\w*[a-z])\w{8,}\b"  # a long word of letters and digits: an id, a token, a hash
    r"|\d+(?:[.,:]\d+)*",  # a number, a time, a version
    re.IGNORECASE,
)


def error_pattern(message: str) -> str:
    """Return an error message with its ids and numbers replaced."""
    return _VARIABLE.sub(PLACEHOLDER, message)


def constant_part(pattern: str) -> str:
    """Return the longest part of a pattern that all its messages have in common."""
    return max((part.strip() for part in pattern.split(PLACEHOLDER)), key=len)
