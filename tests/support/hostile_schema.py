"""Overloaded operators and functions in `public`, as a role that may create objects there could leave them.

PostgreSQL prefers an exact match of the argument types over a built-in function that needs a conversion, wherever in
the `search_path` it is. So there is one operator for each combination of types that has no built-in one, and one
function of one argument for each type. Calling any of them raises.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import psycopg

SCALARS = [
    "smallint",
    "integer",
    "bigint",
    "numeric",
    "real",
    "float8",
    "text",
    "varchar",
    "name",
    "bool",
    "uuid",
    "json",
    "jsonb",
    "timestamptz",
    "timestamp",
    "interval",
    "date",
    "oid",
    "regclass",
    "bytea",
    '"char"',
    "xid",
    "pg_lsn",
]
TYPES = [*SCALARS, "text[]", "bigint[]", "integer[]", "uuid[]"]
COMPARISONS = ("=", "<>", "<", ">", "<=", ">=", "~", "~~")
TEXTUAL = ("||", "->>")
OPERATORS = (*COMPARISONS, *TEXTUAL, "+", "-", "*", "/", "%", "->")
BODY = "language plpgsql as 'begin raise exception ''a hostile function was called''; end'"
BATCH = 1000


def create_hostile_objects(connection: psycopg.Connection[object], functions: Iterable[str] = ()) -> None:
    """Create them; `functions` are names of built-in functions to overload."""
    rows = connection.execute(
        "select oprname, oprleft::regtype::text, oprright::regtype::text from pg_operator"
        " where oprnamespace = 'pg_catalog'::regnamespace"
    ).fetchall()
    known = set(rows)
    types = [
        connection.execute("select format_type(to_regtype(%s), null)", [name]).fetchone()[0]  # type: ignore[index]
        for name in TYPES
    ]
    statements = []
    for left, right in itertools.product(types, types):
        for suffix, returned in (("bool", "boolean"), ("text", "text"), ("same", left)):
            statements.append(f"create function public.hostile_{suffix}(a {left}, b {right}) returns {returned} {BODY}")
        for operator in OPERATORS:
            if (operator, left, right) not in known:
                suffix = "bool" if operator in COMPARISONS else "text" if operator in TEXTUAL else "same"
                statements.append(
                    f"create operator public.{operator} (leftarg = {left}, rightarg = {right},"
                    f" function = public.hostile_{suffix})"
                )
    for name, type in itertools.product(sorted(set(functions)), types):
        statements.append(f"create function public.{name}(a {type}) returns {type} {BODY}")
    for start in range(0, len(statements), BATCH):
        connection.execute(";".join(statements[start : start + BATCH]))
    connection.execute("revoke execute on all functions in schema public from public")
    connection.commit()
