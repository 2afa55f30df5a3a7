"""The setting `HOLDFAST`, and the one app that is made of it.

    HOLDFAST = {"SCHEMA": "holdfast", "INCLUDE": ["shop.reports"]}

Without a `URL`, here or in `$HOLDFAST_URL`, runs are kept in Django's own database, if that is PostgreSQL.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.db import connections
from django.utils.module_loading import module_has_submodule

from holdfast.app import Holdfast
from holdfast.cli.connect import load_app
from holdfast.database import Database
from holdfast.database.url import sqlite_path
from holdfast.errors import ConfigError
from holdfast.integrations.django.connections import fresh_connections, set_up, url_of
from holdfast.model.run import RunInfo

KEYS = ("APP", "URL", "DATABASE", "SCHEMA", "NAME", "MIGRATE", "INCLUDE", "KEEP")
TARGET = f"{__package__}:app"
"""How the command line finds the app."""

_lock = threading.RLock()
_made: Holdfast | None = None


def the_app() -> Holdfast:
    """The app of the settings, the same one each time."""
    global _made
    with _lock:
        if _made is None:
            set_up()
            if not apps.apps_ready:
                raise ConfigError(
                    f"{TARGET} was asked for while Django loads its apps: import it in a module like tasks.py, not in"
                    " an app's __init__.py or apps.py"
                )
            _made = make_app(given())
            _made._hooks.between.append(fresh_connections)
            _made.on_failure(failed_run)
        return _made


def failed_run(info: RunInfo[Any]) -> None:
    """Tells Django's interface of tasks of a run that failed for good, if any task of that interface was declared."""
    backend = sys.modules.get(f"{__package__}.backend")
    if backend is not None:
        fresh_connections()
        backend.tell_failed(info)
        fresh_connections()


def made() -> Holdfast | None:
    """The app, if somebody asked for it yet."""
    return _made


def given() -> dict[str, Any]:
    """The setting, its names checked."""
    setting = getattr(settings, "HOLDFAST", {})
    if not isinstance(setting, Mapping):
        raise ConfigError(f"the setting HOLDFAST must be a dict, not a {type(setting).__name__}")
    for unknown in setting.keys() - set(KEYS):
        raise ConfigError(f"the setting HOLDFAST has no {unknown!r}; it takes {', '.join(KEYS)}")
    if "APP" in setting and len(setting) > 1:
        others = ", ".join(key for key in setting if key != "APP")
        raise ConfigError(f'the setting HOLDFAST names an app of your own, "APP", which says for itself: {others}')
    return dict(setting)


def make_app(setting: Mapping[str, Any]) -> Holdfast:
    """The app that a setting describes. Does no I/O."""
    if "APP" in setting:
        return load_app(setting["APP"])
    options = {
        "schema": setting.get("SCHEMA", "holdfast"),
        "name": setting.get("NAME", _project()),
        "migrate": setting.get("MIGRATE", True),
        "include": [*setting.get("INCLUDE", ()), *_task_modules()],
        "keep": setting.get("KEEP", timedelta(days=30)),
    }
    url = setting.get("URL") or os.environ.get("HOLDFAST_URL")
    if url is None:
        return DjangoHoldfast(setting.get("DATABASE", "default"), **options)
    if "DATABASE" in setting and "URL" in setting:
        raise ConfigError('the setting HOLDFAST has both "URL" and "DATABASE": leave one of them out')
    _refuse_shared_file(url)
    return Holdfast(url, **options)


class DjangoHoldfast(Holdfast):
    """An app whose runs are in one of Django's databases."""

    def __init__(self, alias: str, **options: Any) -> None:
        self.alias = alias
        """The database, by its name in `DATABASES`."""
        if alias not in connections:
            raise ConfigError(f"the setting HOLDFAST names the database {alias!r}, which isn't in DATABASES")
        connection = connections[alias]
        if connection.vendor != "postgresql":
            raise ConfigError(
                f"Django's database {alias!r} is {connection.vendor}, in which no runs can be kept: write"
                ' HOLDFAST = {"URL": f"sqlite:///{BASE_DIR / \'holdfast.db\'}"} in the settings, a file of its own'
            )
        super().__init__(url_of(connection.settings_dict), **options)

    def _open(self, schema: str) -> Database:
        super()._open(schema)  # says what is missing, without psycopg
        from holdfast.integrations.django.database import DjangoDatabase

        return DjangoDatabase(self.alias, schema)


def _project() -> str:
    """The package of the settings: what tells this project's schedules from those of others."""
    return str(os.environ.get("DJANGO_SETTINGS_MODULE", "django")).partition(".")[0]


def _task_modules() -> list[str]:
    """The `tasks` modules of installed apps."""
    return [f"{each.name}.tasks" for each in apps.get_app_configs() if module_has_submodule(each.module, "tasks")]


def _refuse_shared_file(url: str) -> None:
    """Django opens its file through another SQLite library: together they lose each other's locks."""
    if not url.lower().startswith("sqlite:"):
        return
    ours = sqlite_path(url)
    for alias, database in settings.DATABASES.items():
        theirs = str(database.get("NAME") or "")
        if database.get("ENGINE", "").endswith("sqlite3") and Path(theirs).resolve() == Path(ours).resolve():
            raise ConfigError(
                f"the setting HOLDFAST has the file of Django's database {alias!r} as its URL: two SQLite libraries in"
                " one process lose each other's locks. Give Holdfast a file of its own"
            )
