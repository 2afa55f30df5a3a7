"""Group failed runs by task and error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from holdfast.model.run import RunInfo
from holdfast.policy.error_patterns import constant_part, error_pattern

RECENT_FAILURES = 200
"""This many of the latest failures are grouped by error."""
MAX_GROUPS = 8
MAX_MESSAGE_CHARS = 160
MIN_SEARCH_CHARS = 8


@dataclass(slots=True)
class FailureGroup:
    """Runs of one task that failed with the same error, apart from ids and numbers in its message."""

    task: str
    kind: str
    message: str
    """The message, or what the different messages have in common."""
    last: datetime
    example: UUID
    search: str
    """A text that finds these errors: the part of their messages that is the same."""
    count: int = 0


def group_failures(runs: Iterable[RunInfo[Any]]) -> list[FailureGroup]:
    """Group failed runs by task and error, regardless of ids and numbers in messages, the most frequent first."""
    groups: dict[tuple[str, str, str], FailureGroup] = {}
    for run in runs:
        if run.error is None:
            continue
        message = (run.error.message.splitlines() or [""])[0][:MAX_MESSAGE_CHARS]
        pattern = error_pattern(message)
        key = run.task, run.error.type, pattern
        if key not in groups:
            search = constant_part(pattern)
            groups[key] = FailureGroup(
                run.task,
                run.error.type,
                message,
                run.finished_at or run.created_at,
                run.id,
                search if len(search) >= MIN_SEARCH_CHARS else run.error.type,
            )
        elif groups[key].message != message:
            groups[key].message = pattern
        groups[key].count += 1
    return sorted(groups.values(), key=lambda group: -group.count)
