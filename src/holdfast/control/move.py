"""Move all data from one database to another, with runs in flight.

The steps, each of which a repeated call continues after a kill (decision 56):

1. The target is migrated and fenced: it accepts rows only from this move.
2. The source is fenced: no transaction writes to it any more, so no lease is renewed and no run is claimed.
3. All rows are copied, batch by batch, each with the state of the move in the target's transaction.
4. Counts and digests of both sides are compared.
5. The leases of the source's workers run out, so that all of their code has stopped.
6. The source is marked as moved, for good; then the fence of the target is lifted.

Runs that were running are recovered in the target like those of any lost worker, without a charge.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec

from holdfast.control.database_side import (
    FIRST_BATCH_ROWS,
    TENANT_MOVE,
    TENANT_MOVED,
    DatabaseSide,
    move_statement,
    next_limit,
)
from holdfast.control.open import DEFAULT_SCHEMA, IN_MEMORY, check_exists
from holdfast.database import Database, DatabaseConnection, Row, open_database
from holdfast.database.transfer import (
    COPIED,
    FENCE,
    TableCopy,
    TransferTable,
    check_tables,
    lift_fence,
    open_fence,
    put_up_fence,
    put_up_tenant_fence,
)
from holdfast.errors import MoveRefused
from holdfast.model.clock import MICROS_PER_SECOND
from holdfast.model.names import counted

RECORD = "move"
"""The row of `meta` with the state of a move, in both databases."""
LEASE_CHECK_S = 0.2

Stage = Literal["fence", "drain", "take out", "copy", "verify", "wait", "put in", "done"]


class TableState(msgspec.Struct, omit_defaults=True):
    """How far a table was copied."""

    after: list[Any] | None = None
    """The primary key of the last copied row."""
    rows: int = 0
    digest: int = 0
    is_complete: bool = False


class MoveRecord(msgspec.Struct, omit_defaults=True):
    """What a database stores about a move."""

    id: str
    role: Literal["source", "target"]
    other: str
    """The URL of the other database, without its password."""
    other_identity: str
    is_moved: bool = False
    """Whether the target is the one that counts."""
    is_aborted: bool = False
    """Whether the move can't finish any more. The source's record says so while `abort` is under way."""
    tables: dict[str, TableState] = msgspec.field(default_factory=dict)


class MoveProgress(msgspec.Struct, frozen=True):
    """What a move is doing."""

    stage: Stage
    table: str = ""
    rows: int = 0
    """Rows copied or verified so far, of all tables."""
    total: int = 0
    seconds_left: float = 0.0
    """How long leases of the source's workers may still last."""
    running: int = 0
    """Runs of a tenant that still have to end their attempts."""


class MoveReport(msgspec.Struct, frozen=True):
    """What a move has moved, or would move."""

    source: str
    target: str
    state: Literal["planned", "moved", "already moved"]
    tables: dict[str, int]
    """Rows by table."""
    runs: dict[str, int]
    """Runs by state, as they were in the source."""
    live_workers: int = 0
    """Sessions of the source whose leases were valid."""
    tenant: str | None = None
    """The tenant that is moved; None for everything."""
    running: int = 0
    """Runs of the tenant that have to end their attempts before the move."""


class Move:
    """Moves one database to another. Call `plan`, `run` or `abort`."""

    def __init__(
        self,
        source_url: str,
        target_url: str,
        schema: str = DEFAULT_SCHEMA,
        target_schema: str | None = None,
        progress: Callable[[MoveProgress], None] = lambda _progress: None,
    ) -> None:
        if IN_MEMORY in (source_url, target_url):
            raise MoveRefused("an in-memory database can't be moved: it is gone when its program ends")
        check_exists(source_url)
        self._source = _Side(open_database(source_url, schema))
        self._target = _Side(open_database(target_url, target_schema or schema))
        self._progress = progress
        self._total = 0

    @property
    def source_url(self) -> str:
        """The URL of the source, without its password."""
        return self._source.url

    def close(self) -> None:
        self._source.database.close()
        self._target.database.close()

    def plan(self) -> MoveReport:
        """Return what `run` would move; change nothing."""
        check_tables()
        self._source.check_migrated()
        self._check_different()
        if self._target.has_tables() and self._target.read_record() is None:
            self._target.check_empty()
        record = self._source_record()
        return self._report("already moved" if record is not None and record.is_moved else "planned")

    def run(self) -> MoveReport:
        """Move everything, or continue a move that was interrupted."""
        check_tables()
        self._source.check_migrated()
        self._target.migrate()
        self._check_different()
        record = self._begin()
        if record.is_moved:
            self._go_live(record)
            return self._report("already moved")
        report = self._report("moved")
        self._total = sum(report.tables.values())
        self._copy_all(record)
        self._verify(record)
        self._wait_for_leases()
        self._go_live(record)
        self._progress(MoveProgress("done", rows=self._total, total=self._total))
        return report

    def abort(self) -> None:
        """Give up a move that isn't finished: the source accepts writes again, and the target is emptied."""
        source = self._source_record()
        if source is not None and source.is_moved:
            raise MoveRefused(f"the move to {source.other} is finished: it can't be aborted")
        target = self._target.read_record() if self._target.has_tables() else None
        if source is not None and not self._leads_here(source):
            source = None
        if target is not None and target.other_identity != self._source.identity():
            target = None
        if source is None and target is None:
            raise MoveRefused(f"no move from {self._source.url} to {self._target.url} is under way")
        if source is not None:
            self._source.begin_abort(source.id)  # from here on, no process can finish the move
        if target is not None:
            self._target.clear(target.id)
        if source is not None:
            self._source.end_fence(source.id)

    def _leads_here(self, source: MoveRecord) -> bool:
        """Return whether a move of the source has this target, which may have been dropped or created again since."""
        is_known = self._target.has_tables() and source.other_identity == self._target.identity()
        return is_known or source.other == self._target.url

    # Beginning

    def _source_record(self) -> MoveRecord | None:
        """Return the source's record, unless it is that of a finished move to the source: it may be moved on."""
        record = self._source.read_record()
        return None if record is not None and record.role == "target" and record.is_moved else record

    def _check_different(self) -> None:
        if self._target.has_tables() and self._source.identity() == self._target.identity():
            raise MoveRefused(f"{self._source.url} and {self._target.url} are the same database")

    def _begin(self) -> MoveRecord:
        """Fence the target and the source, unless a former call did. Return the target's record."""
        source, target = self._source_record(), self._target.read_record()
        for side in (self._source, self._target):
            side.check_no_tenant_moves()
        self._check_records(source, target)
        if target is None:
            self._progress(MoveProgress("fence"))
            id = secrets.token_hex(8) if source is None else source.id
            target = MoveRecord(id, "target", self._source.url, self._source.identity())
            self._target.begin(target, f"data from {self._source.url} is being moved here; wait for the move")
        if source is None:
            source = MoveRecord(target.id, "source", self._target.url, self._target.identity())
            self._source.begin(source, f"the data was moved to {self._target.url}; use that URL")
        if source.is_moved:
            target.is_moved = True
        return target

    def _check_records(self, source: MoveRecord | None, target: MoveRecord | None) -> None:
        if source is not None and (source.role != "source" or source.other_identity != self._target.identity()):
            raise MoveRefused(
                f"{self._source.url} is being moved, or was moved, to {source.other}: continue that move, or end it"
                f" with `holdfast move {self._source.url} {source.other} --abort`"
            )
        if target is not None and (target.role != "target" or target.other_identity != self._source.identity()):
            raise MoveRefused(f"{self._target.url} takes part in another move, with {target.other}: use another target")
        if source is not None and target is not None and source.id != target.id:
            raise MoveRefused(f"{self._target.url} has data of an aborted move: empty it with `--abort` first")
        if source is not None and source.is_aborted:
            raise MoveRefused(f"the move to {source.other} was aborted, but not completely: repeat it with `--abort`")
        if source is None and target is not None and target.is_moved:
            raise MoveRefused(
                f"{self._target.url} already has the data of {self._source.url}, which doesn't know of that move: was"
                " it restored from a backup? Use another target"
            )
        if source is not None and source.is_moved and target is None:
            raise MoveRefused(f"{self._source.url} was moved to {source.other}, which has other data now")

    # Copying

    def _copy_all(self, record: MoveRecord) -> None:
        done = sum(state.rows for state in record.tables.values())
        for table in COPIED:
            reader, writer = self._source.table(table), self._target.table(table)
            if reader.column_names != writer.column_names:
                raise MoveRefused(
                    f"table {table.name} has other columns in {self._source.url} than in {self._target.url}: run"
                    " `holdfast migrate` on both with the same release"
                )
            limit = FIRST_BATCH_ROWS
            while not (state := record.tables.get(table.name) or TableState()).is_complete:
                rows = self._source.read(reader, state.after, limit)
                rows = [_as_dead_session(row, reader.column_names) for row in rows] if table.name == "workers" else rows
                after = reader.key_of(rows[-1]) if rows else state.after
                digest = (state.digest + reader.digest(rows)) % 2**64
                new = TableState(after, state.rows + len(rows), digest, len(rows) < limit)
                self._target.write_batch(record, writer, rows, state, new)
                record.tables[table.name] = new
                limit = next_limit(limit, rows)
                done += len(rows)
                self._progress(MoveProgress("copy", table.name, done, self._total))

    def _verify(self, record: MoveRecord) -> None:
        """Compare counts and digests. The source's digests were computed from the rows that were read there."""
        done = 0
        for table in COPIED:
            copy, state = self._target.table(table), record.tables[table.name]
            rows, digest, after, limit = 0, 0, None, FIRST_BATCH_ROWS
            while batch := self._target.read(copy, after, limit):
                rows, digest = rows + len(batch), (digest + copy.digest(batch)) % 2**64
                done, after = done + len(batch), copy.key_of(batch[-1])
                self._progress(MoveProgress("verify", table.name, done, self._total))
                limit = next_limit(limit, batch)
            source = state.rows if table.name == "workers" else self._source.count(table)
            if (rows, digest) != (state.rows, state.digest) or source != rows:
                raise MoveRefused(
                    f"table {table.name} differs: {source} rows in {self._source.url}, {rows} in {self._target.url},"
                    f" digests {state.digest:016x} and {digest:016x}; end this move with --abort and move again"
                )

    # Going live

    def _wait_for_leases(self) -> None:
        """Wait until no worker of the source may still execute its runs."""
        while (left_s := self._source.lease_seconds_left()) > 0:
            self._progress(MoveProgress("wait", rows=self._total, total=self._total, seconds_left=left_s))
            time.sleep(min(left_s, LEASE_CHECK_S))

    def _go_live(self, record: MoveRecord) -> None:
        """Mark the source as moved, which can't be undone, and then open the target."""
        self._source.mark_moved(record.id)
        self._target.refuse_tenants(self._source.moved_tenants())
        self._target.go_live(record.id)

    def _report(self, state: Literal["planned", "moved", "already moved"]) -> MoveReport:
        return MoveReport(
            self._source.url,
            self._target.url,
            state,
            {table.name: self._source.count(table) for table in COPIED},
            self._source.count_runs(),
            self._source.count_live_workers(),
        )


class _Side(DatabaseSide):
    """One of the two databases, and the statements of a move in it."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._copies: dict[str, TableCopy] = {}

    # Tables

    def table(self, table: TransferTable) -> TableCopy:
        found = self._copies.get(table.name)
        if found is None:
            found = self.connection.run(lambda connection: TableCopy.of(table, self.database, connection))
            self._copies[table.name] = found
        return found

    def read(self, copy: TableCopy, after: Sequence[Any] | None, limit: int) -> list[Row]:
        return self.connection.run(lambda connection: copy.read(connection, after, limit))

    def count(self, table: TransferTable) -> int:
        copy = self.table(table)
        return self.connection.run(copy.count)

    def count_runs(self) -> dict[str, int]:
        return dict(self.ask("select state, count(*) from {schema}runs group by state order by state"))

    def count_live_workers(self) -> int:
        return int(self.ask("select count(*) from {schema}workers where lease_until > {clock}")[0][0])

    def lease_seconds_left(self) -> float:
        """Return how long the last lease is still valid. Nothing renews it behind the fence."""
        ((left,),) = self.ask("select coalesce(max(lease_until), 0) - {clock} from {schema}workers")
        return float(left) / MICROS_PER_SECOND

    def check_empty(self) -> None:
        """Raise MoveRefused if there is any data."""
        self.connection.run(self._check_empty)

    def _check_empty(self, connection: DatabaseConnection) -> None:
        for table in COPIED:
            copy = TableCopy.of(table, self.database, connection)
            if not copy.is_empty(connection):
                raise MoveRefused(
                    f"{self.url} isn't empty: its table {table.name} has rows. Use another database or schema, or drop"
                    " the tables first"
                )

    # The record of the move

    def read_record(self) -> MoveRecord | None:
        return _decode(self.ask("select value from {schema}meta where name = '" + RECORD + "'"))

    def begin(self, record: MoveRecord, message: str) -> None:
        """Put up the fence and store the record. The target must be empty."""

        def work(connection: DatabaseConnection) -> None:
            put_up_fence(self.database, connection, message, record.id)
            if record.role == "target":
                self._check_empty(connection)
            self._write_record(connection, record)

        self.transaction(work)

    def write_batch(
        self, record: MoveRecord, copy: TableCopy, rows: Sequence[Row], before: TableState, after: TableState
    ) -> None:
        """Write rows and the new state of their table in one transaction.

        A repeat after a lost response finds the new state and changes nothing.
        """

        def work(connection: DatabaseConnection) -> None:
            stored = self._lock_record(connection)
            name = copy.table.name
            found = None if stored is None else stored.tables.get(name) or TableState()
            if stored is None or stored.id != record.id or stored.is_moved or found not in (before, after):
                raise MoveRefused(f"another process has moved table {name} to {self.url} meanwhile: run only one move")
            if found == after and after != before:
                return
            with open_fence(self.database, connection, record.id):
                copy.write(connection, rows)
            stored.tables[name] = after
            self._write_record(connection, stored)

        self.transaction(work)

    def mark_moved(self, id: str) -> None:
        """Mark the source as moved. Raise MoveRefused if the move was aborted, maybe while this process was frozen."""

        def work(connection: DatabaseConnection) -> None:
            record = self._lock_own_record(connection, id)
            record.is_moved = True
            self._write_record(connection, record)

        if not self._is_moved(id):
            self.transaction(work)

    def go_live(self, id: str) -> None:
        """Let the database number rows behind the copied ones, and accept writes."""

        def work(connection: DatabaseConnection) -> None:
            record = self._lock_own_record(connection, id)
            if record.is_moved:
                return  # another process was faster
            for table in COPIED:
                if table.counter is not None:
                    copy = TableCopy.of(table, self.database, connection)
                    copy.adjust_counter(connection, "retired_lanes" if table.name == "lanes" else None)
            lift_fence(self.database, connection)
            record.is_moved = True
            self._write_record(connection, record)

        if not self._is_moved(id):
            self.transaction(work)

    def _is_moved(self, id: str) -> bool:
        record = self.read_record()
        return record is not None and record.id == id and record.is_moved

    # Tenants that moved away before

    def check_no_tenant_moves(self) -> None:
        """Raise MoveRefused while a tenant is being moved from or to this database."""
        if self.ask("select 1 from {schema}meta where name = :name", name=TENANT_MOVE):
            raise MoveRefused(f"a tenant is being moved from or to {self.url}: continue that move first, or abort it")

    def moved_tenants(self) -> dict[str, tuple[str, str]]:
        """Return by tenant what `meta` says about where it went, and why it is refused."""
        found = self.ask(
            "select m.name, m.value, f.value from {schema}meta m join {schema}meta f on f.name = :fence ||"
            " substr(m.name, cast(:size as int) + 1) where substr(m.name, 1, cast(:size as int)) = :moved",
            moved=TENANT_MOVED, fence=FENCE, size=len(TENANT_MOVED),
        )  # fmt: skip
        return {name.removeprefix(TENANT_MOVED): (record, message) for name, record, message in found}

    def refuse_tenants(self, moved: Mapping[str, tuple[str, str]]) -> None:
        """Refuse tenants as the source did that had them before."""

        def work(connection: DatabaseConnection) -> None:
            text = "insert into {schema}meta (name, value) values (:name, :value) on conflict (name) do nothing"
            for tenant, (record, message) in moved.items():
                put_up_tenant_fence(self.database, connection, tenant, message)
                values = {"name": TENANT_MOVED + tenant, "value": record}
                connection.execute(move_statement(self.database, text), values)

        if moved:
            self.transaction(work)

    def begin_abort(self, id: str) -> None:
        """Let the move never finish, unless it has."""

        def work(connection: DatabaseConnection) -> None:
            record = self._lock_own_record(connection, id, is_abort=True)
            record.is_aborted = True
            self._write_record(connection, record)

        self.transaction(work)

    def end_fence(self, id: str) -> None:
        """Accept writes again, and forget the move, unless another process did."""

        def work(connection: DatabaseConnection) -> None:
            record = self._lock_record(connection)
            if record is not None and record.id == id:
                lift_fence(self.database, connection)
                self._delete_record(connection)

        self.transaction(work)

    def clear(self, id: str) -> None:
        """Delete all rows that were copied here, and end the fence."""

        def work(connection: DatabaseConnection) -> None:
            self._lock_own_record(connection, id, is_abort=True)
            with open_fence(self.database, connection, id):
                for table in COPIED:
                    TableCopy.of(table, self.database, connection).clear(connection)
            lift_fence(self.database, connection)
            self._delete_record(connection)

        self.transaction(work)

    def _lock_record(self, connection: DatabaseConnection) -> MoveRecord | None:
        text = "select value from {schema}meta where name = '" + RECORD + "' {lock}"
        return _decode(connection.execute(move_statement(self.database, text), {}))

    def _lock_own_record(self, connection: DatabaseConnection, id: str, *, is_abort: bool = False) -> MoveRecord:
        """Lock the record of this move. Raise MoveRefused if another process has ended it meanwhile."""
        record = self._lock_record(connection)
        if record is None or record.id != id or (record.is_aborted and not is_abort):
            raise MoveRefused(f"the move was aborted by another process meanwhile, as {self.url} says")
        if record.is_moved and is_abort:
            raise MoveRefused(f"the move is finished, as {self.url} says: it can't be aborted")
        return record

    def _write_record(self, connection: DatabaseConnection, record: MoveRecord) -> None:
        text = (
            "insert into {schema}meta (name, value) values ('" + RECORD + "', :value)"
            " on conflict (name) do update set value = excluded.value"
        )
        value = msgspec.json.encode(record).decode()
        connection.execute(move_statement(self.database, text), {"value": value})

    def _delete_record(self, connection: DatabaseConnection) -> None:
        text = "delete from {schema}meta where name = '" + RECORD + "'"
        connection.execute(move_statement(self.database, text), {})


def _decode(rows: Sequence[Row]) -> MoveRecord | None:
    return msgspec.json.decode(rows[0][0], type=MoveRecord) if rows else None


def _as_dead_session(row: Row, columns: Sequence[str]) -> Row:
    """Return the row of a session as one that has lost its lease through no fault of its runs."""
    values = dict(zip(columns, row, strict=True)) | {"lease_until": 0, "died_with": 0, "idle": 0}
    return tuple(values[name] for name in columns)


def describe(report: MoveReport) -> str:
    """Return one line about what a move has moved."""
    rows = sum(report.tables.values())
    of = "" if report.tenant is None else f" of tenant {report.tenant}"
    runs = sum(report.runs.values())
    running = report.runs.get("running", 0)
    return f"{counted(runs, 'run')}{of} ({running} in flight), {counted(rows, 'row')} in {len(report.tables)} tables"
