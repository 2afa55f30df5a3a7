"""How a process learns that another one has written to a SQLite file."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, cast

from holdfast.database.base import Connection, Line, Watch

if TYPE_CHECKING:
    from holdfast.database.sqlite_connection import SqliteConnection

LOOK_SECONDS = 0.005
BUSY_LOOK_SECONDS = 0.05
"""While this process writes without a pause, any change may be its own: then one counts only so often."""
BUSY_LOOKS = 4
"""After so many looks at which it had written, we look only so often too: each takes the interpreter from those who
have work to do."""


class SqliteWatch(Watch):
    """Looks at `data_version`, which costs microseconds. That tells of this process's own commits too; whether it may
    have been one of those, says the use of the line on which it writes."""

    def __init__(self, line: Line, writer: Line) -> None:
        self._line = line
        self._writer = writer
        self._used = 0
        self._seen: tuple[Connection, int] | None = None
        self._heard = 0.0
        self._busy = 0  # looks since this process last paused

    def wait(self, longest: float, stop: threading.Event) -> bool:
        deadline = time.monotonic() + longest
        while True:
            version, used, now = self._line.run(_data_version), self._writer.uses, time.monotonic()
            ours, self._used = used != self._used, used
            self._busy = self._busy + 1 if ours else 0
            if version != self._seen and (not ours or now >= self._heard + BUSY_LOOK_SECONDS):
                self._seen, self._heard = version, now
                return True
            if now >= deadline or stop.wait(LOOK_SECONDS if self._busy < BUSY_LOOKS else BUSY_LOOK_SECONDS):
                return False

    def close(self) -> None:
        self._line.close()


def _data_version(connection: Connection) -> tuple[Connection, int]:
    """Each connection counts for itself: what another one counted says nothing about this one."""
    return connection, cast("SqliteConnection", connection).data_version()


class NoWatch(Watch):
    """A database in memory has no other processes; its own enqueues wake the worker directly."""

    deaf = True

    def wait(self, longest: float, stop: threading.Event) -> bool:
        return not stop.wait(min(longest, 10 * LOOK_SECONDS))

    def close(self) -> None:
        pass
