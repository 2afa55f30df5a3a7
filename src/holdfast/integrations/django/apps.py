"""The Django app: checks the setting, creates the tables with `migrate`, and supports test databases."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db import DEFAULT_DB_ALIAS
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate, pre_migrate

from holdfast.control import Control
from holdfast.errors import ConfigError
from holdfast.integrations.django.test_databases import notice_test_database, remember_databases


class HoldfastConfig(AppConfig):  # type: ignore[misc]  # Django is untyped here
    """The configuration of the Django app."""

    name = __name__.rpartition(".")[0]
    label = "holdfast"
    verbose_name = "Holdfast"

    def ready(self) -> None:
        checks.register(check_setting)
        remember_databases()
        pre_migrate.connect(notice_test_database, sender=self)
        post_migrate.connect(create_tables, sender=self)
        connection_created.connect(close_for_test_databases)


def check_setting(**_: Any) -> list[Any]:
    """Report errors in the `HOLDFAST` setting to `manage.py check`, without I/O."""
    from holdfast.integrations.django.conf import the_app

    try:
        the_app()
    except ConfigError as error:
        return [checks.Error(str(error), id="holdfast.E001")]
    return []


def create_tables(using: str, **_: Any) -> None:
    """Create or migrate the tables after `manage.py migrate`; those in another database with the default one."""
    from holdfast.integrations.django.conf import the_app

    app = the_app()
    if getattr(app, "alias", DEFAULT_DB_ALIAS) == using:
        Control(app.store).upkeep.migrate()


def close_for_test_databases(connection: Any, **_: Any) -> None:
    """Close our connections when Django creates or drops a test database, which they would block."""
    from holdfast.integrations.django.conf import existing_app

    app = existing_app()
    if connection.alias == NO_DB_ALIAS and app is not None:
        app.close()
