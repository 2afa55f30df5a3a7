"""A fence: triggers that refuse every write to Holdfast's tables, until they are removed (decision 56).

Creating the triggers waits for transactions that are writing, so no write is under way behind a fence. The process that
moves data into a fenced database opens the fence for its own transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.database.base import Database, DatabaseConnection
from holdfast.database.faults import MOVED_PREFIX, MOVED_SQLSTATE
from holdfast.database.statements import Statement, StatementSource, render
from holdfast.database.transfer.tables import COPIED, TransferTable

OPEN_FENCE = "move_writer"
"""The row of `meta` that opens a fence on SQLite. It exists only inside a transaction."""
_EVENTS = ("insert", "update", "delete")


def put_up_fence(database: Database, connection: DatabaseConnection, message: str, key: str) -> None:
    """Refuse writes with this message from now on, except from transactions that open the fence with this key.

    Joins the caller's transaction. Workers may still delete the rows of their sessions when they stop.
    """
    text = message.replace("'", "''").replace("$", "")  # it is part of a function's body
    if database.dialect.name == "postgres":
        _run(database, connection, _postgres_fence(text, key))
    else:
        _run(database, connection, "".join(_sqlite_trigger(table.name, event, text) for table, event in _fenced()))


def lift_fence(database: Database, connection: DatabaseConnection) -> None:
    """Accept writes again. Joins the caller's transaction."""
    if database.dialect.name == "postgres":
        _run(database, connection, "drop function if exists {schema}refuse_write() cascade;")
    else:
        names = (f"{{schema}}fence_{table.name}_{event}" for table, event in _fenced())
        _run(database, connection, "".join(f"drop trigger if exists {name};\n" for name in names))


@contextmanager
def open_fence(database: Database, connection: DatabaseConnection, key: str) -> Iterator[None]:
    """Let the caller's transaction write behind the fence inside this block."""
    is_sqlite = database.dialect.name == "sqlite"
    if is_sqlite:
        enter = "insert into {schema}meta (name, value) values ('" + OPEN_FENCE + "', :key)"
    else:
        enter = "select set_config('holdfast.move', :key, true)"
    connection.execute(_statement(database, enter), {"key": key})
    yield
    if is_sqlite:
        leave = "delete from {schema}meta where name = '" + OPEN_FENCE + "' and value = :key"
        connection.execute(_statement(database, leave), {"key": key})


def _fenced() -> list[tuple[TransferTable, str]]:
    return [(table, event) for table in COPIED for event in _EVENTS if (table.name, event) != ("workers", "delete")]


def _sqlite_trigger(table: str, event: str, text: str) -> str:
    return (
        f"create trigger if not exists {{schema}}fence_{table}_{event} before {event} on {{schema}}{table}"
        f" when not exists (select 1 from {{schema}}meta where name = '{OPEN_FENCE}')"
        f" begin select raise(abort, '{MOVED_PREFIX}{text}'); end;\n"
    )


def _postgres_fence(text: str, key: str) -> str:
    """Return a script that locks all tables first, so that it waits for writers once."""
    tables = ", ".join(f"{{schema}}{table.name}" for table in COPIED)
    function = (
        "create or replace function {schema}refuse_write() returns trigger language plpgsql as $$ begin\n"
        f"if current_setting('holdfast.move', true) = '{key}' then return null; end if;\n"
        f"raise exception using errcode = '{MOVED_SQLSTATE}', message = '{text}';\nend $$;\n"
    )
    parts = [f"lock table {tables} in share row exclusive mode;\n", function]
    for table in COPIED:
        events = " or ".join(event for each, event in _fenced() if each is table)
        parts.append(
            f"create or replace trigger holdfast_fence before {events} on {{schema}}{table.name}"
            " for each statement execute function {schema}refuse_write();\n"
        )
    return "".join(parts)


def _run(database: Database, connection: DatabaseConnection, script: str) -> None:
    connection.execute_script(database.dialect.fill(script))


def _statement(database: Database, text: str) -> Statement:
    return render(StatementSource("fence", None, "", text), database.dialect)
