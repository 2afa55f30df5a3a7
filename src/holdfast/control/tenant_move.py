"""Move one tenant from one database to another, which may hold data of other tenants.

The steps, each of which a repeated call continues after a kill (decision 67):

1. The target refuses the tenant, and has tables for its rows: no data of the tenant exists there.
2. The tenant is paused in the source, and the code of its runs ends.
3. The source refuses new rows of the tenant. Then one transaction takes all rows of the tenant out of the live tables
   of the source, into tables of their own.
4. These tables are copied, batch by batch, each with the state of the move in the target's transaction.
5. Counts and digests of both sides are compared.
6. The source is marked as moved, for good. Then one transaction puts the rows into the live tables of the target, and
   lets it accept the tenant.
7. Both databases drop the tables of the move. The source keeps refusing the tenant.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from holdfast.control.database_side import (
    FIRST_BATCH_ROWS,
    TENANT_MOVE,
    TENANT_MOVED,
    DatabaseSide,
    move_statement,
    next_limit,
)
from holdfast.control.move import RECORD as WHOLE_MOVE
from holdfast.control.move import MoveProgress, MoveReport, TableState
from holdfast.control.open import DEFAULT_SCHEMA, IN_MEMORY, check_exists
from holdfast.database import DatabaseConnection, Row, open_database
from holdfast.database.transfer import (
    MOVING_TABLES,
    SharedTree,
    StillRunning,
    TableCopy,
    TenantRows,
    TransferTable,
    UnknownLane,
    open_tenant_fence,
    put_up_tenant_fence,
    remove_tenant_fence,
)
from holdfast.engine.attempt import crash_error
from holdfast.errors import MoveRefused, StoreUnavailable
from holdfast.model.failure import error_to_json
from holdfast.model.names import check_name
from holdfast.store import Store

T = TypeVar("T")

ARRIVED = "tenant_arrived:"
"""How the row of `meta` begins with the id of the move with which a tenant came."""
RUNNING_CHECK_S = 0.5
RECOVERY_DELAY_S = 15.0
"""How long a lease has to be expired before the move recovers its runs itself, because no worker does."""
LOCK_TRIES = 40
LOCK_PAUSE_S = 0.25
LOCK_NOT_AVAILABLE = "55P03"
"""PostgreSQL's SQLSTATE after a lock timeout."""
PAUSED_BY = "holdfast move"

State = Literal["planned", "moved", "already moved"]


class TenantRecord(msgspec.Struct, omit_defaults=True):
    """What a database stores about the move of a tenant."""

    id: str
    tenant: str
    role: Literal["source", "target"]
    other: str
    """The URL of the other database, without its password."""
    other_identity: str
    paused_by: str | None = None
    """In the source: who had paused the tenant before. Its pause moves with it."""
    is_out: bool = False
    """In the source: whether the rows are in the tables of the move."""
    is_moved: bool = False
    """Whether the target is the one that counts; in the target: whether the rows are live there."""
    is_aborted: bool = False
    tables: dict[str, TableState] = msgspec.field(default_factory=dict)


class TenantMove:
    """Moves one tenant. Call `plan`, `run` or `abort`."""

    def __init__(
        self,
        source_url: str,
        target_url: str,
        tenant: str,
        schema: str = DEFAULT_SCHEMA,
        target_schema: str | None = None,
        progress: Callable[[MoveProgress], None] = lambda _progress: None,
    ) -> None:
        if IN_MEMORY in (source_url, target_url):
            raise MoveRefused("a tenant can't be moved from or to an in-memory database: it is gone with its program")
        check_exists(source_url)
        self.tenant = check_name(tenant, "a tenant")
        self._store = Store(open_database(source_url, schema), migrate=False)
        self._source = _TenantSide(self._store.database, self.tenant)
        self._target = _TenantSide(open_database(target_url, target_schema or schema), self.tenant)
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
        self._source.check_migrated()
        source, target = self._check()
        if self._is_done(source):
            return self._report("already moved", {}, {})
        if target is None and self._target.has_tables():
            self._target.check_absent()
        if source is not None and source.is_out:
            return self._report("planned", self._source.count_moving(), self._source.states(are_moving=True))
        self._source.check_unshared()
        return self._report(
            "planned",
            self._source.rows(lambda rows: rows.count()),
            self._source.states(are_moving=False),
            self._source.running(),
        )

    def run(self) -> MoveReport:
        """Move the tenant, or continue a move that was interrupted."""
        self._source.check_migrated()
        self._target.migrate()
        source, target = self._check()
        if self._is_done(source):
            self._target.finish(None if target is None else target.id, ARRIVED)
            return self._report("already moved", {}, {})
        if source is None or not source.is_moved:
            source = self._begin(source, target)
            self._take_out(source)
            tables, states = self._source.count_moving(), self._source.states(are_moving=True)
            self._total = sum(tables.values())
            self._copy_all()
            self._verify(source)
            obstacle = self._target.rows(lambda rows: rows.obstacle())
            if obstacle is not None:
                raise MoveRefused(
                    f"{self._target.url} has {obstacle}. Repeat the move afterwards, or end it with --abort"
                )
            self._source.mark_moved(source.id)
        else:
            tables, states = self._source.count_moving(), self._source.states(are_moving=True)
            self._total = sum(tables.values())
        self._arrive(source)
        self._progress(MoveProgress("done", rows=self._total, total=self._total))
        return self._report("moved", tables, states)

    def abort(self) -> None:
        """Give up a move that isn't finished: the tenant goes on in the source, and the target forgets it."""
        source, target = self._records()
        if self._source.moved_to() is not None or (source is not None and source.is_moved):
            raise MoveRefused(f"the move of tenant {self.tenant} is finished: it can't be aborted")
        if source is None and target is None:
            raise MoveRefused(
                f"no move of tenant {self.tenant} from {self._source.url} to {self._target.url} is under way"
            )
        if source is not None:
            self._source.begin_abort(source.id)  # from here on, no process can finish the move
        if target is not None:
            self._target.clear(target.id)
        if source is not None:
            self._source.take_back(source.id)

    # Beginning

    def _records(self) -> tuple[TenantRecord | None, TenantRecord | None]:
        """Return the records of this move in the source and in the target."""
        has_target = self._target.has_tables()
        source, target = self._source.record(), self._target.record() if has_target else None
        if source is not None and (
            source.role != "source" or source.tenant != self.tenant or not self._leads_here(source)
        ):
            source = None
        if target is not None and (
            target.role != "target" or target.tenant != self.tenant or target.other_identity != self._source.identity()
        ):
            target = None
        return source, target

    def _leads_here(self, source: TenantRecord) -> bool:
        """Return whether the move has this target, which may have been dropped or created again since."""
        is_known = self._target.has_tables() and source.other_identity == self._target.identity()
        return is_known or source.other == self._target.url

    def _is_done(self, source: TenantRecord | None) -> bool:
        return source is None and self._source.moved_to() is not None

    def _check(self) -> tuple[TenantRecord | None, TenantRecord | None]:
        """Return the records of this move. Raise MoveRefused if another one is in its way."""
        has_target = self._target.has_tables()
        if has_target and self._source.identity() == self._target.identity():
            raise MoveRefused(f"{self._source.url} and {self._target.url} are the same database")
        source, target = self._records()
        self._source.check_other(source)
        if has_target:
            self._target.check_other(target)
        moved = self._source.moved_to()
        if source is None and moved is not None:
            if not has_target or moved.other_identity != self._target.identity():
                raise MoveRefused(f"tenant {self.tenant} was moved from {self._source.url} to {moved.other}")
            return source, target
        if source is not None and source.is_aborted:
            raise MoveRefused(f"the move to {source.other} was aborted, but not completely: repeat it with `--abort`")
        if source is None and target is not None and target.is_moved:
            raise MoveRefused(
                f"{self._target.url} already has tenant {self.tenant}, and {self._source.url} doesn't know of that"
                " move: was it restored from a backup?"
            )
        if source is not None and target is not None and source.id != target.id:
            raise MoveRefused(f"{self._target.url} has data of an aborted move: remove it with `--abort` first")
        if source is not None and target is None and self._source_is_ahead(source):
            raise MoveRefused(
                f"{self._target.url} doesn't know of the move that {self._source.url} has begun: was it restored from a"
                " backup, or created again?"
                + ("" if source.is_moved else " End the move with `--abort`, and move again.")
            )
        return source, target

    def _source_is_ahead(self, source: TenantRecord) -> bool:
        """Return whether the target must have a record: it has none if it has finished, or lost its data."""
        return not (source.is_moved and self._target.has_tables() and self._target.arrived() == source.id)

    def _begin(self, source: TenantRecord | None, target: TenantRecord | None) -> TenantRecord:
        """Let the target refuse the tenant, and pause the tenant in the source, unless a former call did."""
        if source is None:
            self._source.check_unshared()
            if target is None and not self._source.rows(lambda rows: rows.exist()):
                raise MoveRefused(f"{self._source.url} has no data of tenant {self.tenant}")
            self._progress(MoveProgress("fence"))
            id = secrets.token_hex(8) if target is None else target.id
            if target is None:
                self._target.check_absent()
                record = TenantRecord(id, self.tenant, "target", self._source.url, self._source.identity())
                self._target.begin_target(record)
            source = TenantRecord(id, self.tenant, "source", self._target.url, self._target.identity())
            source = self._source.begin_source(source)
        self._target.check_absent(source.id)
        return source

    # Taking out

    def _take_out(self, source: TenantRecord) -> None:
        """Take the rows out of the source as soon as no code of the tenant runs there."""
        while not source.is_out:
            while (running := self._source.running()) > 0:
                self._progress(MoveProgress("drain", running=running))
                self._recover()
                time.sleep(RUNNING_CHECK_S)
            self._source.put_up_fence(_gone(source))
            self._progress(MoveProgress("take out"))
            try:
                source = self._source.take_out(source.id)
            except StillRunning:
                continue  # a claim that had begun before the pause
            except SharedTree as error:
                raise MoveRefused(_shared(str(error), self.tenant)) from None
            except UnknownLane as error:
                raise MoveRefused(f"run {error} is in a lane that doesn't exist; run `holdfast doctor`") from None

    def _recover(self) -> None:
        """Recover the runs of workers that have died, in case that no worker is left to do it."""
        dead = [
            session
            for session, micros in self._store.sessions.find_dead().items()
            if micros >= RECOVERY_DELAY_S * 1_000_000 and self._source.owns_runs(session)
        ]
        if dead:
            self._store.sessions.recover(dead, error_to_json(crash_error()))

    # Copying

    def _copy_all(self) -> None:
        record = self._target.record()
        assert record is not None
        done = sum(state.rows for state in record.tables.values())
        for table in MOVING_TABLES:
            reader, writer = self._source.copy(table), self._target.copy(table)
            if reader.column_names != writer.column_names:
                raise MoveRefused(
                    f"table {table.name} has other columns in {self._source.url} than in {self._target.url}: end this"
                    " move with --abort, run `holdfast migrate` on both with the same release, and move again"
                )
            limit = FIRST_BATCH_ROWS
            while not (state := record.tables.get(table.name) or TableState()).is_complete:
                rows = self._source.read(reader, state.after, limit)
                after = reader.key_of(rows[-1]) if rows else state.after
                digest = (state.digest + reader.digest(rows)) % 2**64
                new = TableState(after, state.rows + len(rows), digest, len(rows) < limit)
                self._target.write_batch(record.id, writer, rows, state, new)
                record.tables[table.name] = new
                limit = next_limit(limit, rows)
                done += len(rows)
                self._progress(MoveProgress("copy", table.name, done, self._total))

    def _verify(self, source: TenantRecord) -> None:
        """Compare counts and digests. The source's digests were computed from the rows that were read there."""
        done = 0
        record = self._target.record()
        assert record is not None
        for table in MOVING_TABLES:
            copy, state = self._target.copy(table), record.tables[table.name]
            rows, digest, after, limit = 0, 0, None, FIRST_BATCH_ROWS
            while batch := self._target.read(copy, after, limit):
                rows, digest = rows + len(batch), (digest + copy.digest(batch)) % 2**64
                done, after = done + len(batch), copy.key_of(batch[-1])
                self._progress(MoveProgress("verify", table.name, done, self._total))
                limit = next_limit(limit, batch)
            count = self._source.count(table)
            if (rows, digest) != (state.rows, state.digest) or count != rows or record.id != source.id:
                raise MoveRefused(
                    f"table {table.name} differs: {count} rows in {self._source.url}, {rows} in {self._target.url},"
                    f" digests {state.digest:016x} and {digest:016x}; end this move with --abort and move again"
                )

    # Arriving

    def _arrive(self, source: TenantRecord) -> None:
        """Put the rows into the target's live tables, and clean up on both sides."""
        self._progress(MoveProgress("put in", rows=self._total, total=self._total))
        if self._target.arrived() != source.id:
            self._target.put_in(source.id, source.paused_by)
        self._target.finish(source.id, ARRIVED)
        self._source.finish(source.id, TENANT_MOVED)

    def _report(self, state: State, tables: dict[str, int], runs: dict[str, int], running: int = 0) -> MoveReport:
        return MoveReport(self._source.url, self._target.url, state, tables, runs, 0, self.tenant, running)


class _TenantSide(DatabaseSide):
    """One of the two databases, and the statements of a move of a tenant in it."""

    def __init__(self, database: Any, tenant: str) -> None:
        super().__init__(database)
        self._tenant = tenant
        self._moved = TENANT_MOVED + tenant
        self._arrived = ARRIVED + tenant

    # Rows

    def rows(self, work: Callable[[TenantRows], T]) -> T:
        """Do something with the rows of the tenant, in a transaction."""
        return self.transaction(lambda connection: work(self._rows(connection)))

    def _rows(self, connection: DatabaseConnection) -> TenantRows:
        return TenantRows(self.database, connection, self._tenant)

    def running(self) -> int:
        return self.rows(lambda rows: rows.running())

    def states(self, *, are_moving: bool) -> dict[str, int]:
        return self.rows(lambda rows: rows.states(are_moving=are_moving))

    def owns_runs(self, session: str) -> bool:
        """Return whether a session has runs of the tenant."""
        text = "select 1 from {schema}runs where session = :session and tenant = cast(:tenant as text) limit 1"
        return bool(self.ask(text, session=session, tenant=self._tenant))

    def check_unshared(self) -> None:
        """Raise MoveRefused if a run has a parent or a child of another tenant."""
        shared = self.rows(lambda rows: rows.shared_run())
        if shared is not None:
            raise MoveRefused(_shared(shared, self._tenant))

    def copy(self, table: TransferTable) -> TableCopy:
        return self.connection.run(lambda connection: TableCopy.of(table, self.database, connection))

    def read(self, copy: TableCopy, after: Sequence[Any] | None, limit: int) -> list[Row]:
        return self.connection.run(lambda connection: copy.read(connection, after, limit))

    def count(self, table: TransferTable) -> int:
        return self.connection.run(self.copy(table).count)

    def count_moving(self) -> dict[str, int]:
        """Count the rows in the tables of the move, by the tables that they came from."""
        return {table.name.removeprefix("moving_"): self.count(table) for table in MOVING_TABLES[:-1]}

    # What `meta` says

    def _value(self, name: str) -> str | None:
        found = self.ask("select value from {schema}meta where name = :name", name=name)
        return str(found[0][0]) if found else None

    def _read(self, name: str) -> TenantRecord | None:
        value = self._value(name)
        return None if value is None else _decode(value)

    def record(self) -> TenantRecord | None:
        return self._read(TENANT_MOVE)

    def moved_to(self) -> TenantRecord | None:
        """Return where the tenant went from here, if it is gone."""
        return self._read(self._moved)

    def arrived(self) -> str | None:
        """Return the id of the move with which the tenant came here."""
        return self._value(self._arrived)

    def check_other(self, own: TenantRecord | None) -> None:
        """Raise MoveRefused if another move is under way here."""
        whole = self._value(WHOLE_MOVE)
        if whole is not None and not msgspec.json.decode(whole, type=_WholeMove).is_arrived:
            raise MoveRefused(f"all data of {self.url} is being moved, or was moved: see `holdfast move`")
        found = self.record()
        if found is not None and own is None:
            raise MoveRefused(
                f"{self.url} takes part in another move, of tenant {found.tenant} with {found.other}: continue that"
                " one, or end it with --abort"
            )

    def check_absent(self, id: str | None = None) -> None:
        """Raise MoveRefused if there is data of the tenant here. `id`: of the move that has begun, which is ended."""
        if not self.rows(lambda rows: rows.exist()):
            return
        if id is not None:
            message = "it was created while the move began; end the move with --abort"
        else:
            message = "a move doesn't merge. Use another database or schema"
        raise MoveRefused(f"{self.url} has data of tenant {self._tenant}: {message}")

    # Steps. Each is one transaction, does nothing if it was done before, and fails if another process ended the move.

    def begin_target(self, record: TenantRecord) -> None:
        """Create the tables of the move, and refuse the tenant."""

        def work(connection: DatabaseConnection) -> None:
            if self._lock(connection) is None:
                message = f"data of tenant {self._tenant} is being moved here; wait for the move"
                put_up_tenant_fence(self.database, connection, self._tenant, message)
                self._rows(connection).create_tables()
                self._write(connection, TENANT_MOVE, record)

        self._with_brief_locks(work)

    def begin_source(self, record: TenantRecord) -> TenantRecord:
        """Pause the tenant, and return the record with who had paused it before."""

        def work(connection: DatabaseConnection) -> TenantRecord:
            found = self._lock(connection)
            if found is not None:
                return found
            rows = self._rows(connection)
            record.paused_by = rows.paused_by()
            rows.pause(PAUSED_BY)
            self._write(connection, TENANT_MOVE, record)
            return record

        return self.transaction(work)

    def put_up_fence(self, message: str) -> None:
        self._with_brief_locks(lambda connection: put_up_tenant_fence(self.database, connection, self._tenant, message))

    def take_out(self, id: str) -> TenantRecord:
        """Take the rows out of the live tables."""

        def work(connection: DatabaseConnection) -> TenantRecord:
            record = self._lock_own(connection, id)
            if not record.is_out:
                rows = self._rows(connection)
                rows.take_out()
                rows.forget_pause()
                self._delete(connection, self._arrived)
                record.is_out = True
                self._write(connection, TENANT_MOVE, record)
            return record

        return self.transaction(work)

    def write_batch(self, id: str, copy: TableCopy, rows: Sequence[Row], before: TableState, after: TableState) -> None:
        """Write rows into a table of the move, and the new state of this table."""

        def work(connection: DatabaseConnection) -> None:
            record = self._lock_own(connection, id)
            name = copy.table.name
            found = record.tables.get(name) or TableState()
            if record.is_moved or found not in (before, after):
                raise MoveRefused(f"another process has moved table {name} to {self.url} meanwhile: run only one move")
            if found == after and after != before:
                return
            copy.write(connection, rows)
            record.tables[name] = after
            self._write(connection, TENANT_MOVE, record)

        self.transaction(work)

    def mark_moved(self, id: str) -> None:
        """Mark the source as moved. Raise MoveRefused if the move was aborted, maybe while this process was frozen."""

        def work(connection: DatabaseConnection) -> None:
            record = self._lock_own(connection, id)
            record.is_moved = True
            self._write(connection, TENANT_MOVE, record)

        self.transaction(work)

    def put_in(self, id: str, paused_by: str | None) -> None:
        """Put the rows into the live tables, and accept the tenant."""

        def add_lanes(connection: DatabaseConnection) -> None:
            self._lock_own(connection, id)
            self._rows(connection).add_lanes()

        def work(connection: DatabaseConnection) -> None:
            record = self._lock_own(connection, id)
            if not record.is_moved:
                open_tenant_fence(self.database, connection, self._tenant)
                self._rows(connection).put_back(paused_by)
                self._delete(connection, self._moved)
                self._write_text(connection, self._arrived, id)
                record.is_moved = True
                self._write(connection, TENANT_MOVE, record)

        self.transaction(add_lanes)
        self.transaction(work)

    def finish(self, id: str | None, outcome: str) -> None:
        """Drop the tables of the move and forget it. A target accepts the tenant; a source remembers where it is."""

        def work(connection: DatabaseConnection) -> None:
            record = self._lock(connection)
            if record is None or record.id != id:
                return
            if outcome == ARRIVED:
                remove_tenant_fence(self.database, connection, self._tenant)
            else:
                self._write(connection, self._moved, record)
            self._rows(connection).drop_tables()
            self._delete(connection, TENANT_MOVE)

        self._with_brief_locks(work)

    def begin_abort(self, id: str) -> None:
        """Let the move never finish, unless it has."""

        def work(connection: DatabaseConnection) -> None:
            record = self._lock_own(connection, id, is_abort=True)
            record.is_aborted = True
            self._write(connection, TENANT_MOVE, record)

        self.transaction(work)

    def clear(self, id: str) -> None:
        """Drop what was copied here, and accept the tenant."""

        def work(connection: DatabaseConnection) -> None:
            record = self._lock(connection)
            if record is None or record.id != id:
                return
            if record.is_moved:
                raise MoveRefused(f"the move is finished, as {self.url} says: it can't be aborted")
            went = self._execute(connection, "select value from {schema}meta where name = :name", name=self._moved)
            if went:  # it had left this database, and was about to return
                put_up_tenant_fence(self.database, connection, self._tenant, _gone(_decode(went[0][0])))
            else:
                remove_tenant_fence(self.database, connection, self._tenant)
            self._rows(connection).drop_tables()
            self._delete(connection, TENANT_MOVE)

        self._with_brief_locks(work)

    def take_back(self, id: str) -> None:
        """Put the rows back into the live tables of the source, and accept the tenant as before the move."""

        def add_lanes(connection: DatabaseConnection) -> None:
            record = self._lock(connection)
            if record is not None and record.id == id and record.is_out:
                self._rows(connection).add_lanes()

        def put_back(connection: DatabaseConnection) -> None:
            record = self._lock(connection)
            if record is None or record.id != id:
                return
            rows = self._rows(connection)
            if record.is_out:
                open_tenant_fence(self.database, connection, self._tenant)
                rows.put_back(record.paused_by)
                record.is_out = False
                self._write(connection, TENANT_MOVE, record)
            elif record.paused_by is None:
                rows.resume()

        def forget(connection: DatabaseConnection) -> None:
            record = self._lock(connection)
            if record is not None and record.id == id:
                remove_tenant_fence(self.database, connection, self._tenant)
                self._rows(connection).drop_tables()
                self._delete(connection, TENANT_MOVE)

        self.transaction(add_lanes)
        self.transaction(put_back)
        self._with_brief_locks(forget)

    # The record

    def _lock(self, connection: DatabaseConnection) -> TenantRecord | None:
        found = self._execute(connection, "select value from {schema}meta where name = :name {lock}", name=TENANT_MOVE)
        return _decode(found[0][0]) if found else None

    def _lock_own(self, connection: DatabaseConnection, id: str, *, is_abort: bool = False) -> TenantRecord:
        """Lock the record of this move. Raise MoveRefused if another process has ended it meanwhile."""
        record = self._lock(connection)
        if record is None or record.id != id or (record.is_aborted and not is_abort):
            raise MoveRefused(f"the move was aborted by another process meanwhile, as {self.url} says")
        if record.is_moved and is_abort:
            raise MoveRefused(f"the move is finished, as {self.url} says: it can't be aborted")
        return record

    def _write(self, connection: DatabaseConnection, name: str, record: TenantRecord) -> None:
        self._write_text(connection, name, msgspec.json.encode(record).decode())

    def _write_text(self, connection: DatabaseConnection, name: str, value: str) -> None:
        text = (
            "insert into {schema}meta (name, value) values (:name, :value)"
            " on conflict (name) do update set value = excluded.value"
        )
        self._execute(connection, text, name=name, value=value)

    def _delete(self, connection: DatabaseConnection, name: str) -> None:
        self._execute(connection, "delete from {schema}meta where name = :name", name=name)

    def _execute(self, connection: DatabaseConnection, text: str, **values: Any) -> list[Row]:
        return connection.execute(move_statement(self.database, text), values)

    def _with_brief_locks(self, work: Callable[[DatabaseConnection], None]) -> None:
        """Repeat a transaction that gives up rather than let other writers wait behind it."""
        for is_last in (*[False] * LOCK_TRIES, True):
            try:
                self.transaction(work)
            except StoreUnavailable as error:
                if is_last or getattr(error.__cause__, "sqlstate", None) != LOCK_NOT_AVAILABLE:
                    raise
                time.sleep(LOCK_PAUSE_S)
            else:
                return


class _WholeMove(msgspec.Struct):
    """What matters here in the record of a move of all data."""

    role: str
    is_moved: bool = False

    @property
    def is_arrived(self) -> bool:
        return self.role == "target" and self.is_moved


def _shared(run: str, tenant: str) -> str:
    return (
        f"run {run} of tenant {tenant} has a parent or a child that isn't of this tenant: no tree of runs may be"
        " in two databases. Wait until it has ended and is pruned"
    )


def _gone(source: TenantRecord) -> str:
    """Say why the source refuses the tenant."""
    return f"tenant {source.tenant} was moved to {source.other}; use that URL for this tenant"


_decode = msgspec.json.Decoder(TenantRecord).decode
