"""`manage.py showmigrations`: Django's command, which lists Holdfast's migrations too.

Holdfast's tables aren't Django models, and their migrations aren't Django's: `manage.py migrate` applies them last.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.commands import showmigrations
from django.db import DEFAULT_DB_ALIAS

from holdfast.app import Holdfast
from holdfast.control import Control
from holdfast.control.open import IN_MEMORY
from holdfast.database.migrate import migrations
from holdfast.database.url import sqlite_path
from holdfast.errors import HoldfastError
from holdfast.integrations.django.apps import short_name
from holdfast.integrations.django.conf import the_app

LABEL = "holdfast"


class ShowMigrations(showmigrations.Command):  # type: ignore[misc]  # Django is untyped here
    """Lists the migrations of Django's apps, then those of Holdfast."""

    def handle(self, *args: Any, **options: Any) -> None:
        labels = options["app_label"]
        others = [label for label in labels if label != LABEL]
        if others or not labels:
            super().handle(*args, **{**options, "app_label": others})
        if LABEL in labels or not labels:
            self._show_own(options)

    def _show_own(self, options: dict[str, Any]) -> None:
        app = the_app()
        try:
            if getattr(app, "alias", DEFAULT_DB_ALIAS) != options["database"]:
                return
            version = _version(app)
        except HoldfastError as error:
            self.stdout.write(f"{LABEL}\n (unknown: {error})")
            return
        is_plan = options["format"] == "plan"
        if not is_plan:
            self.stdout.write(LABEL, self.style.MIGRATE_LABEL)
        for migration in migrations():
            mark = "X" if migration.number <= version else " "
            name = short_name(migration.name)
            self.stdout.write(f"[{mark}]  {LABEL}.{name}" if is_plan else f" [{mark}] {name}")


def _version(app: Holdfast) -> int:
    """Return the version of the tables, without creating the file of an SQLite database."""
    if app.url.lower().startswith("sqlite:") and app.url != IN_MEMORY and not Path(sqlite_path(app.url)).exists():
        return 0
    return Control(app.store).upkeep.tables().version


Command = ShowMigrations
"""The name by which Django finds the class."""
