"""A SQLite database in memory that outlives its connections, as a file would: one more of them is kept open, and does
nothing else."""

from __future__ import annotations

from uuid import uuid4

import apsw

_FLAGS = apsw.SQLITE_OPEN_URI | apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE


class Memory:
    """The database. What is in it is gone when it is closed."""

    def __init__(self) -> None:
        self._uri = f"file:/{uuid4().hex}?vfs=memdb"
        self._kept = self.connect()

    def connect(self) -> apsw.Connection:
        return apsw.Connection(self._uri, flags=_FLAGS)

    def close(self) -> None:
        self._kept.close()
