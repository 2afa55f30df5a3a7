"""How a process is set up that does nothing but work."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

YOUNG_OBJECTS = 50_000
"""New objects between two looks for garbage. Runs are freed without: they leave no cycles."""
SWITCH_SECONDS = 0.0005
"""How long a thread computes while another one wants to. Who has the only writer of SQLite waits so long behind every
call (bench jobs)."""


@contextmanager
def own_process() -> Iterator[None]:
    """What is there at the start need not be looked through for garbage again, and the rest less often: with hundreds
    of runs at once that would take a fifth of the time. Threads that come back from the database get the interpreter
    sooner than after 5 ms: a commit is waited for by hundreds."""
    gc.collect()
    gc.freeze()
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(max(threshold[0], YOUNG_OBJECTS) if threshold[0] else 0, *threshold[1:])
    sys.setswitchinterval(min(interval, SWITCH_SECONDS))
    try:
        yield
    finally:
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
