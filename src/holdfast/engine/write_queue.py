"""What waits to be written: the commands of attempts, and their ends; and how it is taken in groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import msgspec

from holdfast.engine.attempt import Attempt
from holdfast.engine.services import Ask
from holdfast.store import End

LARGEST_GROUP = 500
LARGEST_BYTES = 8 * 1024 * 1024
LARGEST_BUNDLE = 256 * 1024
"""Bytes of payloads that are made one text of. With more, a group is put together one by one."""


class Over(NamedTuple):
    """An attempt, and how it ended; without an end: it is over on this worker, long after its run."""

    attempt: Attempt
    end: End | None
    size: int = 0
    """About how many bytes of payload the end has."""
    number: int = 1


class Bundle(msgspec.Struct):
    """Checkpoints of steps, asked for in one turn of the loop, as the JSON that the statement takes. It is made on the
    loop, where they are at hand: every one that another thread looks at has to come from another core (bench steps)."""

    session: str
    asks: list[Ask]
    rows: str
    """What stands between the brackets."""
    size: int
    number: int


Task: TypeAlias = Over | Ask | Bundle

_encode = msgspec.json.Encoder().encode
_size_of = attrgetter("size")
_session_of = attrgetter("attempt.session")
_command_of = attrgetter("command")


def bundled(asks: list[Ask]) -> Sequence[Task]:
    """These checkpoints of steps as one task, where they are small and of one session."""
    session = asks[0].attempt.session
    size = sum(map(_size_of, asks))
    if size > LARGEST_BUNDLE or set(map(_session_of, asks)) != {session}:
        return asks
    rows = _encode(list(map(_command_of, asks))).decode()
    return [Bundle(session, asks, rows[1:-1], size, len(asks))]


def take_group(waiting: deque[Task]) -> list[Task]:
    """As many of them as fit into one group: so many, or so many bytes."""
    group: list[Task] = []
    number = size = 0
    while waiting:
        task = waiting[0]
        number += task.number
        size += task.size
        if group and (number > LARGEST_GROUP or size > LARGEST_BYTES):
            break
        group.append(waiting.popleft())
    return group


def sessions_of(group: Iterable[Task]) -> set[str]:
    return {task.session if isinstance(task, Bundle) else task.attempt.session for task in group}


def loose(group: Iterable[Task]) -> list[Ask | Over]:
    """The same one by one."""
    return [each for task in group for each in (task.asks if isinstance(task, Bundle) else (task,))]
