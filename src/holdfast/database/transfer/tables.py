"""Which tables are copied, and how: in batches by primary key, with a digest of the rows."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.database.base import Database, DatabaseConnection, Row
from holdfast.database.faults import DataFault
from holdfast.database.migrate import table_names
from holdfast.database.statements import Statement, StatementSource, render

DIGEST_MODULUS = 2**64


class TransferTable(NamedTuple):
    """A table with its primary key, and the column that the database numbers, if any."""

    name: str
    key: tuple[str, ...]
    counter: str | None = None


COPIED = tuple(
    TransferTable(name, tuple(key.split()), counter)
    for name, key, counter in (
        ("lanes", "id", "id"),
        ("retired_lanes", "id", None),
        ("queues", "name", None),
        ("pauses", "kind name", None),
        ("limit_settings", "name", None),
        ("limits", "place", None),
        ("budgets", "name", None),
        ("budget_totals", "counter", None),
        ("schedules", "name", None),
        ("slots", "id", "id"),
        ("polls", "id", "id"),
        ("subscriptions", "name", None),
        ("audit", "id", None),
        ("tokens", "id", None),
        ("logins", "id", None),
        ("workers", "session", None),
        ("tallies", "span at lane state", None),
        ("publications", "id", None),
        ("events", "target", None),
        ("keys", "scope key", None),
        ("runs", "id", "seq"),
        ("edges", "needs node", None),
        ("metadata", "run name", None),
        ("run_values", "run name", None),
        ("waits", "run generation key", None),
        ("listeners", "run inbox", None),
        ("messages", "run n", None),
        ("step_permits", "run key", None),
        ("checkpoints", "run generation n", None),
        ("history", "run n", None),
        ("chunks", "run n", None),
        ("logs", "run fence n", None),
        ("langgraph_checkpoints", "thread tenant ns id", None),
        ("langgraph_values", "thread tenant ns channel version", None),
        ("langgraph_writes", "thread tenant ns id task n", None),
    )
)
"""All tables that are copied, small ones first."""
NOT_COPIED = {
    "meta": "describes the tables themselves",
    "watchers": "clients that wait for results, which register again within seconds",
}


def check_tables() -> None:
    """Raise LookupError if a migration has added a table that a move doesn't know."""
    unknown = set(table_names()) - {table.name for table in COPIED} - set(NOT_COPIED)
    if unknown:
        raise LookupError(f"a move doesn't know these tables: {sorted(unknown)}")


class TableCopy:
    """Reads the rows of a table from one database and writes them to another."""

    def __init__(self, table: TransferTable, columns: Mapping[str, str], database: Database) -> None:
        """Handle a table of this database. `columns`: the types of its columns by name."""
        self.table = table
        self._database = database
        self._columns = columns
        self._key_places = [list(columns).index(name) for name in table.key]

    @classmethod
    def of(cls, table: TransferTable, database: Database, connection: DatabaseConnection) -> TableCopy:
        """Read the columns of a table, sorted by name, so that both databases list them alike."""
        if database.dialect.name == "postgres":
            text = (
                "select cast(attname as text), format_type(atttypid, null) from pg_catalog.pg_attribute"
                " where attrelid = to_regclass(:table) and attnum > 0 and not attisdropped"
            )
        else:
            text = "select name, lower(type) from pragma_table_info(:table)"
        where = database.dialect.fill(f"{{schema}}{table.name}")
        rows = connection.execute(_statement(database, text), {"table": where})
        return cls(table, dict(sorted((name, kind) for name, kind in rows)), database)

    @property
    def column_names(self) -> list[str]:
        return list(self._columns)

    @property
    def column_types(self) -> Mapping[str, str]:
        return self._columns

    def count(self, connection: DatabaseConnection) -> int:
        """Count all rows, however long that takes."""
        with connection.transaction():
            if self._database.dialect.name == "postgres":
                connection.execute(_statement(self._database, "select set_config('statement_timeout', '0', true)"), {})
            rows = connection.execute(
                _statement(self._database, f"select count(*) from {{schema}}{self.table.name}"), {}
            )
        return int(rows[0][0])

    def is_empty(self, connection: DatabaseConnection) -> bool:
        text = f"select 1 from {{schema}}{self.table.name} limit 1"
        return not connection.execute(_statement(self._database, text), {})

    def read(self, connection: DatabaseConnection, after: Sequence[Any] | None, limit: int) -> list[Row]:
        """Read the next rows by primary key."""
        names, key = ", ".join(self._columns), ", ".join(self.table.key)
        given = {f"k_{name}": value for name, value in zip(self.table.key, after or (), strict=False)}
        where = f"where ({key}) > ({', '.join(self._typed(name) for name in self.table.key)})" if after else ""
        text = f"select {names} from {{schema}}{self.table.name} {where} order by {key} limit {limit}"
        return connection.execute(_statement(self._database, text), given)

    def _typed(self, name: str) -> str:
        """Return the parameter for a column of the key, with the column's type: it decides about the index."""
        return (
            f"cast(:k_{name} as {self._columns[name]})" if self._database.dialect.name == "postgres" else f":k_{name}"
        )

    def key_of(self, row: Row) -> list[Any]:
        return [row[place] for place in self._key_places]

    def describe(self, row: Row) -> str:
        """Name a row, for errors."""
        return f"{self.table.name} ({', '.join(str(part) for part in self.key_of(row))})"

    def write(self, connection: DatabaseConnection, rows: Sequence[Row]) -> None:
        """Insert rows with their numbers, in the caller's transaction."""
        names = ", ".join(self._columns)
        head = f"insert into {{schema}}{self.table.name} ({names})"
        if self._database.dialect.name == "sqlite":
            labels = [f"v_{name}" for name in self._columns]
            statement = _statement(self._database, f"{head} values ({', '.join(f':{label}' for label in labels)})")
            for row in rows:
                connection.execute(statement, dict(zip(labels, row, strict=True)))
            return
        for row in rows:
            self._check_for_postgres(row)
        overriding = "overriding system value" if self.table.counter else ""
        values = ", ".join(f"cast(e ->> {place} as {kind})" for place, kind in enumerate(self._columns.values()))
        text = f"{head} {overriding} select {values} from jsonb_array_elements(cast(:rows as jsonb)) as each(e)"
        connection.execute(_statement(self._database, text), {"rows": msgspec.json.encode(rows).decode()})

    def _check_for_postgres(self, row: Row) -> None:
        """SQLite stores any value in any column; PostgreSQL doesn't. Name the row that another program corrupted."""
        for (name, kind), value in zip(self._columns.items(), row, strict=True):
            is_number = kind in ("bigint", "integer", "smallint")
            if value is None or (isinstance(value, int) if is_number else isinstance(value, str) and "\0" not in value):
                continue
            raise DataFault(
                f"{self.describe(row)}: column {name} has a value that PostgreSQL can't store as {kind}:"
                f" {str(value)[:60]!r}; `holdfast doctor` lists corrupt rows"
            )

    def adjust_counter(self, connection: DatabaseConnection, also: str | None = None) -> None:
        """Let the database number new rows behind those that were written. `also`: a table with numbers of the same."""
        counter = self.table.counter
        assert counter is not None
        tops = [f"(select max({counter}) from {{schema}}{name})" for name in (self.table.name, also) if name]
        rows = connection.execute(_statement(self._database, f"select {', '.join(tops)}"), {})
        top = max((number for number in rows[0] if number is not None), default=None)
        if top is None:
            return
        if self._database.dialect.name == "postgres":
            table = self._database.dialect.fill(f"{{schema}}{self.table.name}")
            text = "select setval(pg_get_serial_sequence(:table, :counter), cast(:top as bigint))"
            connection.execute(_statement(self._database, text), {"table": table, "counter": counter, "top": top})
        else:
            text = "update sqlite_sequence set seq = max(seq, :top) where name = :table"
            connection.execute(_statement(self._database, text), {"table": f"holdfast_{self.table.name}", "top": top})

    def clear(self, connection: DatabaseConnection) -> None:
        """Delete all rows, in the caller's transaction."""
        connection.execute(_statement(self._database, f"delete from {{schema}}{self.table.name}"), {})

    def digest(self, rows: Sequence[Row]) -> int:
        """Return the sum of the rows' hashes: the same in any order and in any batches."""
        encode, digest = msgspec.json.encode, hashlib.blake2b
        total = sum(int.from_bytes(digest(encode(row), digest_size=8).digest(), "big") for row in rows)
        return total % DIGEST_MODULUS


def _statement(database: Database, text: str) -> Statement:
    return render(StatementSource("move", None, "", text), database.dialect)
