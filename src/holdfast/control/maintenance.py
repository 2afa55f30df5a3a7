"""Maintenance of the database: schema version, migrations, roles, pruning."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from holdfast.control.audit import audited
from holdfast.database.dialect import check_schema
from holdfast.database.migrate import migrations, newest_version
from holdfast.database.roles import role_names, roles_script
from holdfast.model.clock import Duration, to_micros
from holdfast.model.names import check_name
from holdfast.store import Store
from holdfast.store.admin import WalPosition
from holdfast.store.retention import LOWEST_RUN_ID


class SchemaStatus(msgspec.Struct, frozen=True):
    """The schema version of the database and of this code. Version 0: no tables."""

    version: int
    newest: int
    pending: list[str]


class DatabaseRoles(msgspec.Struct, frozen=True):
    """PostgreSQL roles by what they are for, and the SQL script that creates them and grants their privileges."""

    roles: dict[str, str]
    sql: str


def database_roles(schema: str, prefix: str | None = None, tenants: Iterable[str] = ()) -> DatabaseRoles:
    """Return the PostgreSQL roles for a schema. With tenants, row-level security restricts a role of each to its rows.

    `prefix` begins the names of the roles, which are the same for all databases of a server; by default the schema.
    """
    named = [check_name(tenant, "a tenant") for tenant in tenants]
    check_schema(schema)
    return DatabaseRoles(role_names(schema, prefix, named), roles_script(schema, prefix, named))


class Maintenance:
    """Migrates the schema and prunes finished runs."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def tables(self) -> SchemaStatus:
        """Return the schema version and the pending migrations; changes nothing."""
        version = self._store.version()
        return SchemaStatus(version, newest_version(), [each.name for each in migrations() if each.number > version])

    def wal_position(self) -> WalPosition:
        """Return how far the PostgreSQL server has written or replayed its write-ahead log."""
        return self._store.health.wal_position()

    def migrate(self) -> list[str]:
        """Create or migrate the tables, and return the applied migrations."""
        return self._store.migrate()

    def count_old(self, older_than: Duration | None = None) -> int:
        """Count the runs that `prune` would delete."""
        if older_than is None:
            return self._store.retention.count_expired()
        return self._store.retention.count_older(to_micros(older_than, "older_than"))

    @audited("prune runs")
    def prune(self, older_than: Duration | None = None, progress: Callable[[int], None] = lambda _count: None) -> int:
        """Delete expired runs, or all that finished before `older_than`, in batches of one transaction each.

        Calls `progress` with the count after each batch, and returns the total.
        """
        pruned = 0
        age = None if older_than is None else to_micros(older_than, "older_than")
        after: str | None = LOWEST_RUN_ID
        while after is not None:
            if age is None:
                count, more = self._store.retention.prune()
                after = LOWEST_RUN_ID if more else None
            else:
                count, after = self._store.retention.prune_older(age, after)
            pruned += count
            progress(pruned)
        return pruned
