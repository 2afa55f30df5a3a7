"""What only operators read and change: queues, counts of runs, the health of the database."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.store.module import StoreModule, json_rows, time_left
from holdfast.store.run_queries import WaitRow
from holdfast.store.typed_rows import RowReader

# Queues


class QueueStatus(NamedTuple):
    """A queue, and whether it is paused."""

    name: str
    paused: int
    paused_at: int | None


_QUEUE_ROWS = RowReader(QueueStatus)


MAX_OLDEST_ROWS = 1_000
"""How many ready runs are read in total to find the oldest of each queue, unless there are very many lanes."""
OLDEST_OF_LANE = (100, 20, 5)
"""How many of each lane and priority: the first number that isn't too many in total."""


class QueueStore(StoreModule):
    """Queues. The runs of a paused queue stay `ready`, but claims skip its lanes; running ones continue."""

    def pause(self, names: Iterable[str]) -> list[str]:
        """Stop claims from these queues; return the names of those that were not paused before."""
        return self._change("pause_queues", names)

    def resume(self, names: Iterable[str]) -> list[str]:
        """Allow claims from these queues; return the names of those that were paused."""
        return self._change("resume_queues", names)

    def _change(self, statement: str, names: Iterable[str]) -> list[str]:
        rows = json_rows({"name": name} for name in sorted(set(names)))
        return sorted(row[0] for row in self._execute("client", statement, rows=rows))

    def list_all(self) -> list[QueueStatus]:
        """Return every queue that ever had a run or was paused."""
        return _QUEUE_ROWS.read_all(self._execute("read", "list_queues"))

    def oldest_ready(self) -> dict[str, float]:
        """Return by queue how long its oldest ready run has been ready, in seconds."""
        ((lanes,),) = self._execute("stats", "count_lanes")
        most = next((each for each in OLDEST_OF_LANE if each * lanes <= MAX_OLDEST_ROWS), OLDEST_OF_LANE[-1])
        rows = self._execute("stats", "read_oldest_ready", limit=most)
        ages = {str(queue): time_left(now, since) for queue, since, now in rows}
        return {queue: max(age or 0, 0) / MICROS_PER_SECOND for queue, age in ages.items()}


# Counts

MAX_INDEX_ENTRIES = 100_000
"""How many entries of an index are counted."""
MAX_SCATTERED_ROWS = 20_000
"""How many are counted if each needs a row as well, which may be anywhere in the table."""
MAX_SUSPENDED = 2000
"""How many suspended runs are searched for long waits."""
MAX_COUNTED_TABLE_ROWS = 20_000
"""A table with more rows than this, by the database's estimate, isn't counted."""

_SCATTERED = ("count_held", "count_scheduled", "count_running", "count_suspended")


class LaneCounts(NamedTuple):
    """Unfinished runs in a state by lane. If not exact, there are more than these."""

    by_lane: dict[int, int]
    exact: bool


class RunTotal(NamedTuple):
    """The number of all runs."""

    runs: int
    exact: bool


class RunCounts(StoreModule):
    """Counts of runs in bounded time: each state by its own index, and only up to a maximum."""

    def unfinished(self) -> dict[str, LaneCounts]:
        """Count unfinished runs by stored state and by lane."""
        found: dict[str, LaneCounts] = {}
        for statement in ("count_ready", *_SCATTERED):
            limit = MAX_SCATTERED_ROWS if statement in _SCATTERED else MAX_INDEX_ENTRIES
            rows = self._execute("read", statement, limit=limit)
            exact = sum(runs for _, _, runs in rows) < limit
            for state, lane, runs in rows:
                by_lane, was_exact = found.get(state, ({}, True))
                known = lane if isinstance(lane, int) else 0  # a lane that doesn't exist, if the row is corrupt
                by_lane[known] = by_lane.get(known, 0) + int(runs)
                found[state] = LaneCounts(by_lane, was_exact and exact)
        return found

    def unsuccessful(self) -> dict[str, tuple[int, bool]]:
        """Count failed, cancelled and skipped runs, and return for each whether the number is exact."""
        found = {}
        for state in ("failed", "cancelled", "skipped"):
            ((runs,),) = self._execute("read", "count_unsuccessful", limit=MAX_INDEX_ENTRIES, state=state)
            if runs:
                found[state] = (int(runs), runs < MAX_INDEX_ENTRIES)
        return found

    def total(self) -> RunTotal:
        """Return the database's estimate of the number of runs, or count them if there are few."""
        ((estimate,),) = self._execute("read", "estimate_total")
        if estimate > MAX_COUNTED_TABLE_ROWS:
            return RunTotal(int(estimate), False)
        ((runs,),) = self._execute("read", "count_runs", limit=MAX_INDEX_ENTRIES)
        return RunTotal(int(runs), runs < MAX_INDEX_ENTRIES)


# Health


class ServerFacts(NamedTuple):
    """Settings and state of a PostgreSQL server."""

    max_connections: int
    connections: int
    fsync: str
    synchronous_commit: str
    full_page_writes: str
    autovacuum: str
    standby: int
    notifications: float
    """How full the server's notification queue is, from 0 to 1."""
    version: str
    listeners: int


class WalPosition(NamedTuple):
    """How far a server has written or replayed the write-ahead log. Times are microseconds."""

    bytes: int
    now: int
    replayed_at: int | None
    """When the last transaction that a standby has replayed was committed."""


class SnapshotHolder(NamedTuple):
    """A transaction or replication slot that keeps vacuum from removing dead rows. `took`: microseconds."""

    kind: str
    pid: int | None
    name: str | None
    user: str | None
    took: int | None
    doing: str | None
    query: str | None


class TableBloat(NamedTuple):
    """Live and dead rows of a table. `cleaned`: microseconds since the last vacuum, None if never vacuumed."""

    table: str
    live: int
    dead: int
    cleaned: int | None


class FileFacts(NamedTuple):
    """Settings and state of a SQLite file. Sizes are bytes."""

    version: str
    journal_mode: str
    size: int
    free: int
    wal_size: int
    mode: int | None
    """The file's permissions; None in memory."""
    writer: tuple[int, float] | None = None
    """The process whose application code holds the write lock, and for how many seconds."""
    lost_processes: tuple[int, ...] = ()
    """Processes that have a file of this name open that was deleted or replaced."""


class DatabaseHealth(StoreModule):
    """Facts about the database, for `control` to judge."""

    @property
    def on_postgres(self) -> bool:
        return self._context.on_postgres

    def server(self) -> ServerFacts:
        """Return the facts of the PostgreSQL server."""
        return ServerFacts._make(self._execute("read", "read_server_facts")[0])

    def wal_position(self) -> WalPosition:
        """Return how far the PostgreSQL server has written or replayed the write-ahead log."""
        return WalPosition._make(self._execute("read", "read_wal_position")[0])

    def snapshot_holders(self) -> list[SnapshotHolder]:
        """Return what keeps vacuum from removing dead rows on PostgreSQL, the oldest first."""
        return [SnapshotHolder._make(row) for row in self._execute("read", "list_old_snapshots")]

    def bloat(self) -> list[TableBloat]:
        """Return Holdfast's tables, those with the most dead rows first."""
        return [TableBloat._make(row) for row in self._execute("read", "list_table_bloat")]

    def long_waits(self, age: int, size: int) -> list[tuple[str, str, WaitRow]]:
        """Return waits without a timeout that are `age` microseconds old: run, task and wait, the oldest first."""
        rows = self._execute("read", "long_waits", limit=MAX_SUSPENDED, age=age, size=size)
        return [(str(id), str(task), WaitRow(*wait)) for id, task, *wait in rows]

    def stored_bytes(self) -> int:
        """Return the size of all tables with their indexes; on SQLite, that of everything in the file."""
        return int(self._execute("read", "read_stored_bytes")[0][0])

    def file(self) -> FileFacts:
        """Return the facts of the SQLite file."""
        from holdfast.database.sqlite import SqliteDatabase  # loads the driver, so only where it is used

        database = self._context.database
        assert isinstance(database, SqliteDatabase)
        ((version, journal_mode, pages, free, page_size, path),) = self._execute("read", "read_file_facts")
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
