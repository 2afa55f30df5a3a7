"""The Django app: checks the setting, makes our tables with `migrate`, and steps aside for test databases."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db import DEFAULT_DB_ALIAS
from django.db.backends.base.base import NO_DB_ALIAS
from django.db.backends.signals import connection_created
from django.db.models.signals import post_migrate

from holdfast.control import Control
from holdfast.errors import ConfigError


class HoldfastConfig(AppConfig):  # type: ignore[misc]  # it is seen as Any here
    """What `holdfast.integrations.django` in `INSTALLED_APPS` stands for."""

    name = __name__.rpartition(".")[0]
    label = "holdfast"
    verbose_name = "Holdfast"

    def ready(self) -> None:
        checks.register(check_setting)
        post_migrate.connect(make_tables, sender=self)
        connection_created.connect(step_aside)


def check_setting(**_: Any) -> list[Any]:
    """`manage.py check`: what is wrong with the setting, without I/O."""
    from holdfast.integrations.django.conf import the_app

    try:
        the_app()
    except ConfigError as error:
        return [checks.Error(str(error), id="holdfast.E001")]
    return []


def make_tables(using: str, **_: Any) -> None:
    """After `manage.py migrate`: our tables too. Those in a place of their own come with the default database."""
    from holdfast.integrations.django.conf import the_app

    app = the_app()
    if getattr(app, "alias", DEFAULT_DB_ALIAS) == using:
        Control(app.store).upkeep.migrate()


def step_aside(connection: Any, **_: Any) -> None:
    """Django is connected to no database only to make, copy or drop one for tests; our connections to it would be in
    the way. The next use opens new ones."""
    from holdfast.integrations.django.conf import made

    app = made()
    if connection.alias == NO_DB_ALIAS and app is not None:
        app.close()
