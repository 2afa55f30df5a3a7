"""Facts about the database that say whether all is well with it. What they mean is for `control/doctor.py` to say."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from holdfast.store.part import Part


class ServerFacts(NamedTuple):
    """A PostgreSQL server."""

    max_connections: int
    connections: int
    fsync: str
    synchronous_commit: str
    full_page_writes: str
    autovacuum: str
    standby: int
    notifications: float
    """How full the server's queue of notifications is, from 0 to 1."""
    version: str
    listeners: int


class Holder(NamedTuple):
    """Someone who keeps the server from cleaning up dead rows. `took`: microseconds."""

    kind: str
    pid: int | None
    name: str | None
    user: str | None
    took: int | None
    doing: str | None
    query: str | None


class Bloat(NamedTuple):
    """A table's live and dead rows. `cleaned`: how many microseconds ago; None where it never was."""

    table: str
    live: int
    dead: int
    cleaned: int | None


class FileFacts(NamedTuple):
    """A SQLite file. Sizes are bytes."""

    version: str
    journal_mode: str
    size: int
    free: int
    wal_size: int
    mode: int | None
    """The file's permissions; None in memory."""
    writer: tuple[int, float] | None = None
    """The process whose application code has the write lock, and for how many seconds."""
    lost_processes: tuple[int, ...] = ()
    """Processes that have a file of this name open which was deleted or replaced."""


class Health(Part):
    """Facts, some of which only one of the databases has."""

    @property
    def on_postgres(self) -> bool:
        return self._ground.database.dialect.name == "postgres"

    def server(self) -> ServerFacts:
        return ServerFacts._make(self._one("read", "server_facts")[0])

    def holders(self) -> list[Holder]:
        """Who has an old snapshot, the oldest first."""
        return [Holder._make(row) for row in self._one("read", "old_snapshots")]

    def bloat(self) -> list[Bloat]:
        """Our tables, those with the most dead rows first."""
        return [Bloat._make(row) for row in self._one("read", "bloat")]

    def file(self) -> FileFacts:
        from holdfast.database.sqlite import SqliteDatabase  # its driver is loaded only where it is used

        database = self._ground.database
        assert isinstance(database, SqliteDatabase)
        ((version, journal_mode, pages, free, page_size, path),) = self._one("read", "file_facts")
        wal = Path(f"{path}-wal")
        return FileFacts(
            version,
            journal_mode,
            pages * page_size,
            free * page_size,
            wal.stat().st_size if path and wal.exists() else 0,
            Path(path).stat().st_mode & 0o777 if path else None,
            database.long_writer(),
            tuple(database.processes_on_deleted_files()),
        )
