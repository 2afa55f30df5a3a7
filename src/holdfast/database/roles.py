"""PostgreSQL roles with the least privileges for each kind of process, as a SQL script.

| role | for |
| --- | --- |
| `migrate` | owns the tables; `holdfast migrate` |
| `work` | workers, and applications that also cancel, retry, send or emit |
| `operate` | the dashboard and operators: `work`, and tokens, logins and paused queues |
| `enqueue` | applications that only create runs; reads no payload |
| `read` | people and programs that look at runs; reads neither tokens, logins nor the audit log |

The roles can't log in. A user is granted one or several of them. A tenant's role creates and reads the runs of its
tenant only, by row-level security: its policies name the tenant as a literal, because a client can change a setting.
"""

from __future__ import annotations

import hashlib
import re

import msgspec

from holdfast.database.dialect import MAX_TIME_MICROS, MAX_TURN, check_schema
from holdfast.errors import ConfigError

ROLES = ("migrate", "work", "operate", "enqueue", "read")
MAX_PREFIX_CHARS = 30

_ALL = "select, insert, update, delete"
_PLAIN_TENANT = re.compile(r"[a-z0-9_]{1,24}")
_LOOKS_HASHED = re.compile(r"[0-9a-f]{16}")

_WORK = {
    "runs": _ALL, "keys": _ALL, "lanes": _ALL, "workers": _ALL, "checkpoints": _ALL, "waits": _ALL, "events": _ALL,
    "messages": _ALL, "metadata": _ALL, "run_values": _ALL, "limits": _ALL, "step_permits": _ALL, "watchers": _ALL,
    "budget_totals": _ALL, "tallies": _ALL, "subscriptions": _ALL, "publications": _ALL,
    "listeners": "select, insert, delete",
    "chunks": _ALL, "history": "select, insert, delete", "edges": "select, insert, delete",
    "logs": "select, insert, delete", "audit": _ALL,
    "slots": "select, insert, delete", "polls": "select, insert, delete", "retired_lanes": "select, insert, delete",
    "limit_settings": "select, insert, update", "budgets": "select, insert, update", "schedules": _ALL,
    "queues": "select", "pauses": "select, update, delete", "meta": "select",
    "langgraph_checkpoints": _ALL, "langgraph_values": _ALL, "langgraph_writes": _ALL,
}  # fmt: skip
_OPERATE = {
    **_WORK,
    "queues": "select, insert, update",
    "pauses": _ALL,
    "tokens": "select, insert, update",
    "logins": _ALL,
}
_NEW_RUN = (
    "id, lane, tenant, priority, state, due_at, deadline, lifetime, max_crashes, unique_name, args, options, tags,"
    " keep, keep_failed, created_at, limits, turn, debounce, held, start_by, root, parent, spawn_key, kind, node,"
    " pending, plan, cause"
)
"""What an enqueue writes. Without a session a run can't be `running`, without an end it can't be finished."""
_TIMES = ("due_at", "deadline", "lifetime", "keep", "keep_failed", "created_at", "start_by")
_ENQUEUE = {
    "meta": "select",
    "lanes": "select, insert (queue, task), update (limited, unused_since)",
    "runs": f"select (id, seq, lane, tenant, state, held, priority, turn, session, unique_name, finished_at),"
    f" insert ({_NEW_RUN}), update (held)",
    "keys": "select, insert, update (run, digest, created_at, expires_at)",
    "edges": "insert",
    "metadata": "insert",
    "limit_settings": "select, insert",
    "budgets": "select, insert",
    "workers": "select (session, idle, lease_until, wake_channel, wake_group)",
    "watchers": _ALL,
}
_READ = dict.fromkeys((table for table in _WORK if table != "audit"), "select")
_TENANT = {
    **_ENQUEUE,
    "runs": f"select, insert ({_NEW_RUN}), update (held)",
    "edges": "select, insert",
    "metadata": "select, insert",
    **dict.fromkeys(
        ("history", "checkpoints", "waits", "messages", "chunks", "events", "logs", "run_values"), "select"
    ),
}
_GRANTS = {"work": _WORK, "operate": _OPERATE, "enqueue": _ENQUEUE, "read": _READ}
_VIEWS = (
    "paused_lanes", "paused_tenants", "shown_runs", "readable_runs", "readable_history", "readable_workers",
    "readable_queues", "readable_checkpoints", "readable_waits", "readable_events", "readable_schedules",
    "readable_tallies", "readable_watchers", "readable_subscriptions", "readable_publications",
)  # fmt: skip
_OPERATORS_VIEWS = ("readable_tokens", "readable_logins")
_TENANT_VIEWS = (
    "shown_runs", "readable_runs", "readable_history", "readable_checkpoints", "readable_waits", "readable_events",
)  # fmt: skip
_PARTS_OF_RUNS = ("history", "checkpoints", "waits", "messages", "chunks", "metadata", "logs", "run_values")
_TENANT_TABLES = ("runs", "keys", "events", "edges", *_PARTS_OF_RUNS)


def role_names(schema: str, prefix: str | None = None, tenants: list[str] | None = None) -> dict[str, str]:
    """Return the roles that the script creates, by what they are for; a tenant's by `tenant NAME`."""
    prefix = check_schema(schema).lower() if prefix is None else prefix
    if not re.fullmatch(rf"[a-z_][a-z0-9_]{{0,{MAX_PREFIX_CHARS - 1}}}", prefix):
        raise ConfigError(
            f"invalid prefix of roles {prefix[:60]!r}: use lower-case letters, digits and underscores, at most"
            f" {MAX_PREFIX_CHARS} characters, not starting with a digit; --prefix sets it"
        )
    names = {role: f"{prefix}_{role}" for role in ROLES}
    return names | {f"tenant {tenant}": _tenant_role(prefix, tenant) for tenant in tenants or ()}


def _tenant_role(prefix: str, tenant: str) -> str:
    """Return the name of a tenant's role. Two tenants never have the same one."""
    if _PLAIN_TENANT.fullmatch(tenant) and not _LOOKS_HASHED.fullmatch(tenant):
        return f"{prefix}_tenant_{tenant}"
    return f"{prefix}_tenant_{hashlib.sha256(tenant.encode()).hexdigest()[:16]}"


def roles_script(schema: str, prefix: str | None = None, tenants: list[str] | None = None) -> str:
    """Return SQL that creates the roles and grants each exactly its privileges. It may be executed again."""
    names = role_names(schema, prefix, tenants)
    tenant_roles = {tenant: names[f"tenant {tenant}"] for tenant in tenants or ()}
    grants = [line for role, tables in _GRANTS.items() for line in _grants(schema, names[role], tables)]
    views = ", ".join(f'"{schema}".{view}' for view in _VIEWS)
    grants += [f'grant select on {views} to "{names[role]}";' for role in ("work", "operate", "read")]
    grants += [f'grant select on "{schema}".{view} to "{names["operate"]}";' for view in _OPERATORS_VIEWS]
    grantees = ", ".join(f'"{name}"' for name in names.values())
    parts = [
        (
            "-- PostgreSQL roles of Holdfast, created by `holdfast roles`. Execute it as a superuser, or as the\n"
            "-- owner of the database with CREATEROLE, after each `holdfast migrate`. It may be executed again."
        ),
        "begin;\nset local search_path = pg_catalog, pg_temp;",
        "\n".join(_create_role(name) for name in names.values()),
        _MEMBERSHIP.format(owner=names["migrate"]),
        (
            f'create schema if not exists "{schema}" authorization "{names["migrate"]}";\n'
            f'alter schema "{schema}" owner to "{names["migrate"]}";\n'
            f'revoke all on schema "{schema}" from public;\n'
            f'grant usage on schema "{schema}" to {grantees};'
        ),
        _OWNERSHIP.format(schema=schema, literal=_literal(schema), owner=names["migrate"]),
        _once_tables_exist(schema, [_revoke(schema, names, tenant_roles), *grants]),
        _FUNCTIONS.format(
            schema=schema,
            owner=names["migrate"],
            grantees=", ".join(f'"{name}"' for role, name in names.items() if role not in ("migrate", "read")),
        ),
    ]
    if tenant_roles:
        parts.append(_once_tables_exist(schema, _row_security(schema, names, tenant_roles)))
    return "\n\n".join([*parts, "commit;\n"])


def _create_role(name: str) -> str:
    return (
        f'do $$ begin create role "{name}" nologin; exception when duplicate_object or unique_violation then null;'
        " end $$;"
    )


_MEMBERSHIP = """do $$
begin
    if not (select r.rolsuper from pg_roles r where r.rolname = current_user) then
        grant "{owner}" to current_user; -- who changes the owner of a table must be a member of both
    end if;
end $$;"""

_FUNCTIONS = """do $$
declare name text;
begin
    for name in
        select cast(cast(p.oid as regprocedure) as text) from pg_proc p
        where p.pronamespace = cast('"{schema}"' as regnamespace)
        and p.proname in ('enqueue', 'check_name', 'check_duration')
    loop
        execute format('alter function %s owner to %I', name, '{owner}');
        execute format('revoke all on function %s from public', name);
        execute format('grant execute on function %s to {grantees}', name);
    end loop;
end $$;"""

_OWNERSHIP = """do $$
declare name text;
begin
    for name in
        select c.relname from pg_class c
        where c.relnamespace = cast('"{schema}"' as regnamespace) and c.relkind in ('r', 'v')
    loop
        execute format('alter table %I.%I owner to %I', {literal}, name, '{owner}');
    end loop;
end $$;"""


def _once_tables_exist(schema: str, lines: list[str]) -> str:
    body = "\n    ".join(lines)
    return f"""do $holdfast$
begin
    if to_regclass('"{schema}".meta') is null then
        raise notice 'there are no tables yet: run `holdfast migrate`, then this script again';
        return;
    end if;
    {body}
end $holdfast$;"""


def _revoke(schema: str, names: dict[str, str], tenant_roles: dict[str, str]) -> str:
    """Return SQL that revokes what an earlier version of the script, or an administrator, granted."""
    others = [names[role] for role in _GRANTS] + list(tenant_roles.values())
    return f'revoke all on all tables in schema "{schema}" from public, ' + ", ".join(f'"{x}"' for x in others) + ";"


def _grants(schema: str, role: str, tables: dict[str, str]) -> list[str]:
    return [f'grant {privileges} on "{schema}".{table} to "{role}";' for table, privileges in tables.items()]


# Row-level security


def _row_security(schema: str, names: dict[str, str], tenant_roles: dict[str, str]) -> list[str]:
    """Return SQL that restricts tenants' roles to rows of their tenant, and leaves the others unrestricted.

    A policy on runs can't read runs, so a function does that with the owner's rights. It is volatile, in order to see
    rows of the same transaction.
    """
    trusted = ", ".join(f'"{names[role]}"' for role in _GRANTS)
    function = f'"{schema}".run_has_tenant(uuid, text)'
    lines = [
        f"""create or replace function "{schema}".run_has_tenant(run uuid, tenant text) returns boolean language sql
        volatile security definer set search_path = pg_catalog, pg_temp
        as 'select exists (select 1 from "{schema}".runs r where r.id = $1 and r.tenant = $2)';""",
        f'alter function {function} owner to "{names["migrate"]}";',
        f"revoke all on function {function} from public;",
    ]
    for table in _TENANT_TABLES:
        lines += [
            *_policy(schema, table, "holdfast_roles", trusted, "true"),
            f'alter table "{schema}".{table} enable row level security;',
        ]
    # Before PostgreSQL 15, a view reads all rows that its owner sees. So tenants have no access to views there.
    invoker = [f'alter view "{schema}".{view} set (security_invoker = true);' for view in (*_VIEWS, *_OPERATORS_VIEWS)]
    reading = [
        f'grant select on "{schema}".{view} to "{role}";' for role in tenant_roles.values() for view in _TENANT_VIEWS
    ]
    modern = "cast(current_setting('server_version_num') as int) >= 150000"
    lines.append(f"if {modern} then\n        " + "\n        ".join([*invoker, *reading]) + "\n    end if;")
    for tenant, role in tenant_roles.items():
        lines += [*_grants(schema, role, _TENANT), f'grant execute on function {function} to "{role}";']
        lines += _tenant_policies(schema, role, tenant)
    return lines


def _tenant_policies(schema: str, role: str, tenant: str) -> list[str]:
    """Return the policies of a tenant's role.

    The names of keys and unique runs begin with the tenant as JSON. A run may only be a part of the tenant's own runs.
    It may not be a nested graph, whose nodes a worker would create later, unchecked. Its numbers must not overflow in
    the statements of workers, which handle runs of all tenants together.
    """
    own = _literal(tenant)
    begins = _literal(f"[{msgspec.json.encode(tenant).decode()},")
    related = " and ".join(
        f'({column} is null or "{schema}".run_has_tenant({column}, {own}))' for column in ("parent", "root")
    )
    new = (
        f"tenant = {own} and (unique_name is null or starts_with(unique_name, {begins})) and {related}"
        f" and (plan is null or not jsonb_exists(cast(plan as jsonb), 'graph'))"
        f" and turn between -{MAX_TURN} and {MAX_TURN} and least({', '.join(_TIMES)}) >= -{MAX_TIME_MICROS}"
        f" and greatest({', '.join(_TIMES)}) <= {MAX_TIME_MICROS}"
    )
    policies = {
        "runs": (f"tenant = {own}", new),
        "keys": (f"starts_with(scope, {begins})", None),
        "events": (f"tenant = {own}", None),
        "edges": (f"{_visible(schema, 'edges', 'needs')} and {_visible(schema, 'edges', 'node')}", None),
        **{table: (_visible(schema, table, "run"), None) for table in _PARTS_OF_RUNS},
    }
    return [
        line
        for table, (using, check) in policies.items()
        for line in _policy(schema, table, role, f'"{role}"', using, check)
    ]


def _visible(schema: str, table: str, column: str) -> str:
    """Return a condition on the run of a row: it is one that the policy of runs lets through."""
    return f'exists (select 1 from "{schema}".runs r where r.id = {table}.{column})'


def _policy(schema: str, table: str, name: str, to: str, using: str, check: str | None = None) -> list[str]:
    return [
        f'drop policy if exists "{name}" on "{schema}".{table};',
        f'create policy "{name}" on "{schema}".{table} to {to} using ({using}) with check ({check or using});',
    ]


def _literal(text: str) -> str:
    """Quote a literal, whatever `standard_conforming_strings` says."""
    if "\0" in text or "$holdfast$" in text:
        raise ConfigError(f"a database role can't be limited to the tenant {text[:60]!r}")
    quoted = text.replace("'", "''")
    return "E'" + quoted.replace("\\", "\\\\") + "'" if "\\" in text else f"'{quoted}'"
