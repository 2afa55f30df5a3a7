"""The base of every store module: named statements, executed on managed connections, with the clock filled in."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeAlias, TypeVar, cast

import msgspec

from holdfast.database import Database, DatabaseConnection, ManagedConnection, Row, Statement, Statements
from holdfast.database.base import IDLE_TIMEOUT_S
from holdfast.database.caller_connection import CallerConnection
from holdfast.database.faults import DataFault
from holdfast.database.fork_safety import register_fork_hooks
from holdfast.database.migrate import prepare_schema
from holdfast.errors import ConfigError
from holdfast.model.clock import Clock, database_clock
from holdfast.model.payloads import Payloads

if TYPE_CHECKING:
    from holdfast.store.quarantine import Quarantine

T = TypeVar("T")
CLIENT = "client"
"""The purpose of connections that applications write with."""
MAX_BATCH_ROWS = 500
MAX_BATCH_BYTES = 8 * 1024 * 1024

_encode = msgspec.json.Encoder().encode


def json_rows(rows: Iterable[Any]) -> str:
    """Encode rows as the one JSON parameter that set-based statements take."""
    return _encode(list(rows)).decode()


def id_rows(runs: Iterable[str]) -> str:
    """Encode run ids as the JSON parameter of a statement."""
    return json_rows({"id": run} for run in runs)


def column(rows: Iterable[Row]) -> list[Any]:
    """Return the first column of rows."""
    return [row[0] for row in rows]


def time_left(at: Any, now: int) -> int | None:
    """Return the microseconds from `now` until a stored time, 0 if that is corrupt, None if there is none."""
    return None if at is None else at - now if isinstance(at, int) and isinstance(now, int) else 0


class ResolvedWait(NamedTuple):
    """A wait that a transaction has resolved. `outcome`: its kind."""

    run: str
    generation: int
    key: str
    outcome: str
    value: str | None


ClientCommitCallback: TypeAlias = Callable[[Sequence[ResolvedWait], bool], None]
"""Takes the waits that a client's commit has resolved, and whether runs may have become ready."""

MAX_COMMIT_CLAIM_RUNS = 8
"""More runs than this that become ready with one commit are left to the claimer, which claims while others commit."""


class ClientClaim(Protocol):
    """A claim of a worker in the transaction in which a client of its process makes runs ready.

    It is entered before the transaction begins, called at its end, and left after the commit.
    """

    @property
    def session_id(self) -> str: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None: ...

    def __call__(self, tx: Tx) -> None: ...


ClientClaims: TypeAlias = Callable[[], ClientClaim | None]
"""Returns the claim for a client's next transaction; None while the worker leaves claims to its claimer."""

StatementCall: TypeAlias = tuple[str, dict[str, Any]]
"""A statement's name and its values."""


def in_batches(rows: Iterable[T], size: Callable[[T], int], max_rows: int = MAX_BATCH_ROWS) -> Iterator[list[T]]:
    """Split rows into batches of at most `max_rows` and about `MAX_BATCH_BYTES`.

    `size` estimates the payload bytes of a row. PostgreSQL rejects a parameter of more than 256 MB.
    """
    batch: list[T] = []
    total = 0
    for row in rows:
        row_bytes = size(row)
        total += row_bytes
        if batch and (len(batch) == max_rows or total > MAX_BATCH_BYTES):
            yield batch
            batch, total = [], row_bytes
        batch.append(row)
    if batch:
        yield batch


def in_chunks(rows: Sequence[T], size: int = MAX_BATCH_ROWS) -> list[Sequence[T]]:
    """Split small rows into chunks of at most `size`."""
    return [rows[at : at + size] for at in range(0, len(rows), size)]


def history_row(run: str, n: int, kind: str, attempt: int, **more: Any) -> dict[str, Any]:
    """Build one row for `add_history`.

    Pass `fence` only for what the run's own session reports: it marks the entry as the end of that claim.
    """
    return {"run": run, "n": n, "kind": kind, "attempt": attempt, **more}


CORRUPT_DATA = (DataFault, TypeError, ValueError, OverflowError)
"""How a corrupt row shows: the database rejects the batch, or code can't handle a value of another type."""


class StoreContext:
    """What the modules of one store share: database, clock, payload codec and rendered statements.

    The first connection that a module asks for creates or checks the tables.
    """

    quarantine: Quarantine
    """Set by the store, because it is one of its modules."""

    def __init__(self, database: Database, clock: Clock, payloads: Payloads, *, migrate: bool) -> None:
        self.database = database
        self.on_postgres = database.dialect.name == "postgres"
        """Whether statements marked `only: postgres` apply; otherwise those marked `only: sqlite` do."""
        self.payloads = payloads
        self.statements = Statements("holdfast.store.sql", database.dialect)
        self.clock = clock
        self.has_own_clock = clock is not database_clock
        self.idle_timeout_s = IDLE_TIMEOUT_S
        self.migrates = migrate
        self._prepared = False
        self._identity: str | None = None
        self._prepare_lock = threading.Lock()
        self._commit_callbacks: tuple[ClientCommitCallback, ...] = ()
        self._client_claims: tuple[ClientClaims, ...] = ()
        self._claimed_checks: tuple[Callable[[str], bool], ...] = ()
        self.watcher: str | None = None
        """The registration of this process in `watchers` for which its own workers needn't notify."""
        self.verified: weakref.WeakSet[object] = weakref.WeakSet()
        """Callers' databases that are known to be the app's own."""
        register_fork_hooks(self)

    def on_client_commit(self, callback: ClientCommitCallback) -> Callable[[], None]:
        """Call this whenever a client of this process has committed; return a function that stops it.

        Workers in the process of their client needn't wait until the database announces the change.
        """
        self._commit_callbacks = (*self._commit_callbacks, callback)

        def remove() -> None:
            self._commit_callbacks = tuple(each for each in self._commit_callbacks if each is not callback)

        return remove

    def claim_for_clients(self, claims: ClientClaims) -> Callable[[], None]:
        """Let a worker claim in the transactions of clients of this process; return a function that ends it."""
        self._client_claims = (*self._client_claims, claims)

        def remove() -> None:
            self._client_claims = tuple(each for each in self._client_claims if each is not claims)

        return remove

    def report_claimed(self, is_claimed: Callable[[str], bool]) -> Callable[[], None]:
        """Let a worker of this process tell which runs it executes; return a function that ends it."""
        self._claimed_checks = (*self._claimed_checks, is_claimed)

        def remove() -> None:
            self._claimed_checks = tuple(each for each in self._claimed_checks if each is not is_claimed)

        return remove

    def is_claimed_here(self, run: str) -> bool:
        """Return whether a worker of this process executes the run. It reports its end once that is committed."""
        return any(is_claimed(run) for is_claimed in self._claimed_checks)

    def client_claim(self) -> ClientClaim | None:
        """Return what claims in the next transaction of a client, if a worker of this process could start a run now."""
        if not self._client_claims or self.database.in_user_transaction():
            return None
        return next((found for claims in self._client_claims if (found := claims()) is not None), None)

    def client_committed(self, tx: Tx | None = None) -> None:
        """Call the callbacks, unless the calling thread is inside a transaction that isn't committed yet."""
        if self._commit_callbacks and not self.database.in_user_transaction():
            resolved = [] if tx is None else _resolved_waits(tx)
            has_ready = tx is None or not tx.counts_ready_runs or tx.ready_runs > 0
            for callback in self._commit_callbacks:
                callback(resolved, has_ready)

    def before_fork(self) -> None:
        """Do nothing; `after_fork` is enough."""

    def after_fork(self, *, in_child: bool) -> None:
        """Replace the lock in a forked child: the thread that may have held it doesn't exist there."""
        if in_child:
            self._prepare_lock = threading.Lock()
            self._commit_callbacks = ()
            self._client_claims = ()

    def connection(self, purpose: str) -> ManagedConnection:
        """Return the managed connection for a purpose; the first call prepares the tables."""
        if not self._prepared:
            self.prepare()
        return self.database.connection(purpose, self.idle_timeout_s)

    def identity(self) -> str:
        """Return the random id of these tables, which differs between databases and schemas."""
        if self._identity is None:
            statement = self.statements.get("read_identity")
            rows = self.connection("client").run(lambda connection: connection.execute(statement, {}))
            self._identity = str(rows[0][0])
        return self._identity

    def prepare(self) -> list[str]:
        """Create, migrate or check the tables, once; return the names of migrations applied now."""
        with self._prepare_lock:
            if self._prepared:
                return []
            managed = self.database.connection("client", self.idle_timeout_s)
            applied = managed.run(lambda connection: prepare_schema(self.database, connection, migrate=self.migrates))
            self._prepared = True
            return applied


class Tx:
    """An open transaction, which executes named statements.

    Functions that take one as `tx` never begin or commit: they are steps of their caller's transaction.
    """

    __slots__ = (
        "_connection", "_context", "claiming_session", "counts_ready_runs", "payloads", "ready_runs", "resolved_waits",
    )  # fmt: skip

    def __init__(self, context: StoreContext, connection: DatabaseConnection) -> None:
        self._context = context
        self._connection = connection
        self.payloads = context.payloads
        self.ready_runs = 0
        """How many runs this transaction has made ready, or a few more."""
        self.counts_ready_runs = False
        """Whether `ready_runs` counts all of them."""
        self.claiming_session: str | None = None
        """The session that claims at the end of this transaction, if it is a client's."""
        self.resolved_waits: list[tuple[Sequence[Mapping[str, Any]], Callable[[], list[Row]]]] = []
        """Waits of locked runs to resolve, and the rows of those that the transaction has resolved."""

    @property
    def watcher(self) -> str | None:
        """The registration of this process in `watchers` for which its own workers needn't notify."""
        return self._context.watcher

    def execute(self, name: str, /, *, limit: int | None = None, **values: Any) -> list[Row]:
        """Execute a statement and return its rows. `limit` replaces `{limit}` in its text."""
        context = self._context
        values["now"] = context.clock() if context.has_own_clock else None
        return self._connection.execute(context.statements.get(name, limit), values)

    def queue(self, name: str, /, *, limit: int | None = None, **values: Any) -> Callable[[], list[Row]]:
        """Queue a statement behind the ones before; return a function that returns its rows.

        On PostgreSQL, queued statements share a round trip with the next statement whose rows are needed.
        """
        context = self._context
        values["now"] = context.clock() if context.has_own_clock else None
        return self._connection.queue(context.statements.get(name, limit), values)


class _OpenedByCaller:
    """Executes the statements of a `Tx` on a caller's connection, each at once."""

    def __init__(self, connection: CallerConnection) -> None:
        self.execute = connection.execute

    def queue(self, statement: Statement, values: Mapping[str, Any]) -> Callable[[], list[Row]]:
        rows = self.execute(statement, values)
        return lambda: rows


def check_identity(expected: str) -> Generator[StatementCall, list[Row], None]:
    """Yield the statements that check whether a caller's connection leads to the app's own tables."""
    found = yield "find_tables", {}
    if not found[0][0]:
        raise ConfigError(
            "the database of connection= has no Holdfast tables: use the same database and schema as the app"
        )
    identity = yield "read_identity", {}
    if not identity or identity[0][0] != expected:
        raise ConfigError(
            "the database of connection= has Holdfast tables of its own: use the same database and schema as the app"
        )


def run_steps(steps: Generator[StatementCall, list[Row], T], execute: Callable[..., list[Row]]) -> T:
    """Execute the statements of steps to their end; return their result, such as run ids."""
    try:
        name, values = next(steps)
        while True:
            try:
                rows = execute(name, **values)
            except Exception as error:
                name, values = steps.throw(error)
            else:
                name, values = steps.send(rows)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def _resolved_waits(tx: Tx) -> list[ResolvedWait]:
    """Return the waits that a committed transaction has resolved."""
    found: list[ResolvedWait] = []
    for waits, resolved in tx.resolved_waits:
        keys = {(str(run), key) for run, key, *_ in resolved()}
        found += [ResolvedWait(**each) for each in waits if (each["run"], each["key"]) in keys]
    return found


class AutocommitTx(Tx):
    """Executes each statement in a transaction of its own, for functions that only read and may see changes between."""

    __slots__ = ("_module", "_purpose")

    def __init__(self, module: StoreModule, purpose: str, payloads: Payloads) -> None:
        self._module = module
        self._purpose = purpose
        self.payloads = payloads

    def execute(self, name: str, /, *, limit: int | None = None, **values: Any) -> list[Row]:
        return self._module._execute(self._purpose, name, limit=limit, **values)


class StoreModule:
    """One subject of the store, with its statements."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context

    def _execute(self, purpose: str, name: str, /, *, limit: int | None = None, **values: Any) -> list[Row]:
        """Execute one statement that commits by itself, on the connection for `purpose`."""
        context = self._context
        statement = context.statements.get(name, limit)
        values["now"] = context.clock() if context.has_own_clock else None
        rows = context.connection(purpose).run(lambda connection: connection.execute(statement, values))
        if purpose == CLIENT and statement.writes:
            context.client_committed()
        return rows

    def _autocommit(self, purpose: str) -> Tx:
        return AutocommitTx(self, purpose, self._context.payloads)

    def _transaction(self, purpose: str, work: Callable[[Tx], T]) -> T:
        """Run `work` in one transaction; after a conflict or a lost connection, run all of it again."""

        last: Tx | None = None
        claim = self._context.client_claim() if purpose == CLIENT else None

        def attempt(connection: DatabaseConnection) -> T:
            nonlocal last
            with connection.transaction():
                last = self._open(connection)
                if claim is None:
                    return work(last)
                last.claiming_session = claim.session_id
                result = work(last)
                claim(last)
                return result

        with claim or nullcontext():
            result = self._context.connection(purpose).run(attempt)
        if purpose == CLIENT:
            self._context.client_committed(last)
        return result

    def _write(self, purpose: str, work: Callable[[Tx], T], connection: CallerConnection | None) -> T:
        """Run `work` in a transaction: a new one, or that of the caller's connection, where nothing is repeated.

        A failure leaves nothing of it in the caller's transaction.
        """
        if connection is None:
            return self._transaction(purpose, work)
        context = self._context
        connection.check()
        tx = Tx(context, cast(DatabaseConnection, _OpenedByCaller(connection)))
        if connection.target not in context.verified:
            run_steps(check_identity(context.identity()), tx.execute)
            context.verified.add(connection.target)
        tx.execute("begin_enqueue")
        try:
            result = work(tx)
        except Exception:
            tx.execute("rollback_enqueue")
            raise
        tx.execute("release_enqueue")
        return result

    def _past_corrupt_rows(self, purpose: str, work: Callable[[], T], suspects: Callable[[Tx], Iterable[Any]]) -> T:
        """Call `work`, which commits by itself. If a corrupt row breaks it, quarantine that run and call it again.

        `suspects` reads the ids of the runs that `work` handles first.
        """
        try:
            return work()
        except CORRUPT_DATA as error:
            self._context.quarantine.take_out(purpose, suspects, error)
        return work()

    def _open(self, connection: DatabaseConnection) -> Tx:
        return Tx(self._context, connection)
