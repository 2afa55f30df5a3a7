"""Priority aging: in queues with `age_priority`, the priority of a run grows while it waits.

Each interval of waiting counts like one more priority. So of two runs, the one with the smaller `ready - priority *
interval` comes first, and that order never changes: it is stored once, as the run's turn, and no row is rewritten while
runs wait. The `priority` column of these runs is 0. Their turns are below those of all other runs by
`AGED_TURN_OFFSET`, so that statements recognize them. The run's stored options have its `Age` under the name `age`:
`{next_turn}` in `database/dialect.py` needs the shift when the run becomes ready again, and operators see the priority.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from holdfast.database.dialect import AGED_TURN_OFFSET

AGE = "age"


class Age(NamedTuple):
    """How the priority of a run grows. `shift`: how far its turn is before that of a run in an ordinary queue.

    `interval`: microseconds of waiting that count like one more priority.
    """

    shift: int
    priority: int
    interval: int

    @classmethod
    def of(cls, priority: int, interval: int) -> Age:
        """Return the age of a run with this priority; `interval` is in microseconds."""
        return cls(AGED_TURN_OFFSET + priority * interval, priority, interval)


def stored_turn(options: str | None) -> int:
    """Return the turn of a new run with the options of another one, as `NewRun` has it."""
    if options is None or '"age"' not in options:
        return 0
    stored = msgspec.json.decode(options)
    return -Age(*stored[AGE]).shift if AGE in stored else 0


def change_priority(options: str | None, priority: int) -> tuple[str, int] | None:
    """Return the options of a run with another priority, and by how much its turn changes; None if it has no age."""
    stored = {} if options is None else msgspec.json.decode(options)
    if AGE not in stored:
        return None
    old = Age(*stored[AGE])
    new = Age.of(priority, old.interval)
    return msgspec.json.encode(stored | {AGE: new}).decode(), old.shift - new.shift
