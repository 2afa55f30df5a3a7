"""Writes databases down as SQL, and reads them in again."""

from __future__ import annotations

from pathlib import Path

import apsw
import psycopg

from holdfast.testing.server import PostgresServer

COUNTERS = "sqlite_sequence"
"""SQLite's own table, which is there as soon as another one counts."""


def dump_sqlite(file: Path) -> str:
    connection = apsw.Connection(str(file))
    made = list(connection.execute("select type, name, sql from sqlite_schema where sql is not null order by rowid"))
    tables = [name for kind, name, _ in made if kind == "table" and name != COUNTERS]
    lines = [f"{sql};" for _, name, sql in made if name in tables]
    for name in [*tables, COUNTERS]:
        columns = [row[1] for row in connection.execute(f'pragma table_info("{name}")')]
        values = " || ', ' || ".join(f'quote("{column}")' for column in columns)
        rows = connection.execute(f'select {values} from "{name}"')
        lines += [f"delete from {COUNTERS};"] * (name == COUNTERS)
        lines += [f'insert into "{name}" values ({row[0]});' for row in rows]
    lines += [f"{sql};" for kind, _, sql in made if kind != "table"]
    connection.close()
    return "\n".join(lines) + "\n"


def load_sqlite(text: str, file: Path) -> None:
    connection = apsw.Connection(str(file))
    connection.execute("begin")
    connection.execute(text)
    connection.execute("commit")
    connection.close()


def dump_postgres(server: PostgresServer, url: str) -> str:
    """Without what only psql understands, or only the newest servers."""
    said = server.dump(url)
    left_out = ("\\", "SET transaction_timeout", "--")
    return "\n".join(line for line in said.splitlines() if line and not line.startswith(left_out)) + "\n"


def load_postgres(text: str, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(text.encode())
