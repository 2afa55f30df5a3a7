"""The Django app: checks the setting, creates the tables with `migrate`, and supports test databases."""

from __future__ import annotations

import sys
from typing import Any

from django.apps import AppConfig
from django.db import DEFAULT_DB_ALIAS
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate, pre_migrate

from holdfast.control import Control
from holdfast.integrations.django.checks import register_checks
from holdfast.integrations.django.test_databases import notice_test_database, remember_databases


class HoldfastConfig(AppConfig):  # type: ignore[misc]  # Django is untyped here
    """The configuration of the Django app."""

    name = __name__.rpartition(".")[0]
    label = "holdfast"
    verbose_name = "Holdfast"

    def ready(self) -> None:
        register_checks()
        remember_databases()
        pre_migrate.connect(notice_test_database, sender=self)
        post_migrate.connect(create_tables, sender=self)
        connection_created.connect(close_for_test_databases)


def create_tables(using: str, verbosity: int = 0, stdout: Any = None, **_: Any) -> None:
    """Create or migrate the tables after `manage.py migrate`; those in another database with the default one."""
    from holdfast.integrations.django.conf import setting_error, the_app

    app = the_app()
    if setting_error() is not None or getattr(app, "alias", DEFAULT_DB_ALIAS) != using:
        return
    applied = Control(app.store).upkeep.migrate()
    if verbosity >= 1:
        lines = [f"  Applied {short_name(name)}" for name in applied] or ["  No migrations to apply."]
        (stdout or sys.stdout).write("\n".join(["Running migrations of Holdfast:", *lines]) + "\n")


def short_name(migration: str) -> str:
    """Return the name of a migration without its suffix, as Django shows it."""
    return migration.removesuffix(".sql")


def close_for_test_databases(connection: Any, **_: Any) -> None:
    """Close our connections when Django creates or drops a test database, which they would block."""
    from holdfast.integrations.django.conf import existing_app

    app = existing_app()
    if connection.alias == NO_DB_ALIAS and app is not None:
        app.close()
