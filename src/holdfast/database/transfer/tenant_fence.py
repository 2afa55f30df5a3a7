"""A fence around one tenant: triggers that refuse new rows of the tenant, and pass those of others (decision 67).

Creating and removing the triggers takes locks that writers wait for, so both are short transactions of their own. In
between, the fence is opened by a row of `meta`: that takes no lock, and joins the transaction that needs it. It is a
row that opens, not one that closes, so that a transaction with an old snapshot is refused.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from holdfast.database.base import Database, DatabaseConnection
from holdfast.database.faults import TENANT_MOVED_PREFIX, TENANT_MOVED_SQLSTATE
from holdfast.database.statements import Statement, StatementSource, render

FENCED_TABLES = ("runs", "events", "publications", "langgraph_checkpoints", "langgraph_values", "langgraph_writes")
"""The tables with a column `tenant` to which clients add rows."""
FENCE = "tenant_fence:"
"""How the row of `meta` begins that says why a tenant is refused; the tenant follows."""
_OPEN = "tenant_open:"
LOCK_TIMEOUT_MS = 500
"""How long a change of the triggers may wait for other writers, which wait behind it."""


def put_up_tenant_fence(database: Database, connection: DatabaseConnection, tenant: str, message: str) -> None:
    """Refuse new rows of this tenant with this message from now on. Joins the caller's transaction.

    On PostgreSQL, raise StoreUnavailable if that would let other writers wait for long.
    """
    _limit_lock_wait(database, connection)
    values = {"tenant": tenant, "open": _OPEN + tenant, "message": message, "sqlite": TENANT_MOVED_PREFIX + message}
    if database.dialect.name == "postgres":
        script = _POSTGRES_FUNCTION + _for_each_table(_POSTGRES_TRIGGER)
    else:
        script = _for_each_table(_SQLITE_TRIGGER)
    _run(database, connection, script, tenant, values)
    close_tenant_fence(database, connection, tenant)
    connection.execute(_statement(database, _SET), {"name": FENCE + tenant, "value": message})


def open_tenant_fence(database: Database, connection: DatabaseConnection, tenant: str) -> None:
    """Accept rows of this tenant as soon as the caller's transaction is committed, and inside it."""
    connection.execute(_statement(database, _SET), {"name": _OPEN + tenant, "value": ""})


def close_tenant_fence(database: Database, connection: DatabaseConnection, tenant: str) -> None:
    """Undo `open_tenant_fence`."""
    connection.execute(_statement(database, _UNSET), {"name": _OPEN + tenant})


def remove_tenant_fence(database: Database, connection: DatabaseConnection, tenant: str) -> None:
    """Remove the triggers. Joins the caller's transaction, and limits its wait like `put_up_tenant_fence`."""
    _limit_lock_wait(database, connection)
    drop = _POSTGRES_DROP if database.dialect.name == "postgres" else _SQLITE_DROP
    _run(database, connection, _for_each_table(drop), tenant, {})
    close_tenant_fence(database, connection, tenant)
    connection.execute(_statement(database, _UNSET), {"name": FENCE + tenant})


_SET = (
    "insert into {schema}meta (name, value) values (:name, :value)"
    " on conflict (name) do update set value = excluded.value"
)
_UNSET = "delete from {schema}meta where name = :name"

_POSTGRES_FUNCTION = """
create or replace function {schema}refuse_tenant() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $function$
begin
    if exists (select 1 from {schema}meta m where m.name = tg_argv[0]) then
        return new;
    end if;
    raise exception using errcode = '@code@', message = tg_argv[1];
end
$function$;
""".replace("@code@", TENANT_MOVED_SQLSTATE)
_POSTGRES_TRIGGER = """
create or replace trigger @name@ before insert on {schema}@table@
for each row when (new.tenant = @tenant@) execute function {schema}refuse_tenant(@open@, @message@);
"""
_POSTGRES_DROP = "drop trigger if exists @name@ on {schema}@table@;\n"
_SQLITE_TRIGGER = """
create trigger if not exists {schema}@name@_@table@ before insert on {schema}@table@
when new.tenant = @tenant@ and not exists (select 1 from {schema}meta where name = @open@)
begin select raise(abort, @sqlite@); end;
"""
_SQLITE_DROP = "drop trigger if exists {schema}@name@_@table@;\n"


def _for_each_table(script: str) -> str:
    return "".join(script.replace("@table@", table) for table in FENCED_TABLES)


def _run(
    database: Database, connection: DatabaseConnection, script: str, tenant: str, values: Mapping[str, str]
) -> None:
    """Run a script. The texts of users are put in last and at once, so that nothing in them is replaced."""
    name = "tenant_" + hashlib.blake2b(tenant.encode(), digest_size=8).hexdigest()
    literals = {f"@{key}@": "'" + value.replace("'", "''") + "'" for key, value in values.items()}
    filled = database.dialect.fill(script.replace("@name@", name))
    connection.execute_script(re.sub("@[a-z]+@", lambda found: literals[found[0]], filled))


def _limit_lock_wait(database: Database, connection: DatabaseConnection) -> None:
    if database.dialect.name == "postgres":
        text = f"select set_config('lock_timeout', '{LOCK_TIMEOUT_MS}', true)"
        connection.execute(_statement(database, text), {})


def _statement(database: Database, text: str) -> Statement:
    return render(StatementSource("tenant fence", None, "", text), database.dialect)
