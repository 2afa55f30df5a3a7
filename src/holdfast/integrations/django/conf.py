"""The `HOLDFAST` setting, and the app that is created from it.

    HOLDFAST = {"SCHEMA": "holdfast", "INCLUDE": ["shop.reports"]}

Without a `URL`, here or in `$HOLDFAST_URL`, runs are stored in Django's database, which must be PostgreSQL.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import NoneType
from typing import Any

from django.apps import apps
from django.conf import settings
from django.db import connections
from django.utils.module_loading import module_has_submodule

from holdfast.app import Holdfast
from holdfast.cli.connect import load_app
from holdfast.control.open import IN_MEMORY
from holdfast.database import Database
from holdfast.database.url import sqlite_path
from holdfast.errors import ConfigError
from holdfast.integrations.django.connections import (
    close_async_connections,
    close_connections,
    fresh_connections,
    set_up,
    url_of,
)
from holdfast.integrations.django.stores import DjangoStore, InvalidStore
from holdfast.integrations.django.test_databases import remember_databases, runs_tests
from holdfast.model.keep import DEFAULT_KEEP_AUDIT, Keep
from holdfast.model.run import RunInfo

TARGET = f"{__package__}:app"
"""How the CLI finds the app."""

_TYPES: dict[str, tuple[type, ...]] = {
    "APP": (str,), "URL": (str,), "DATABASE": (str,), "SCHEMA": (str,), "NAME": (str,), "MIGRATE": (bool,),
    "INCLUDE": (list, tuple), "KEEP": (Keep, timedelta, int, float), "KEEP_KEYS": (timedelta, int, float, NoneType),
    "KEEP_AUDIT": (timedelta, int, float),
    "KEEP_EVENTS": (timedelta, int, float, NoneType), "SECRET": (str, list, tuple), "PUBLIC_URL": (str,),
}  # fmt: skip

_lock = threading.RLock()
_app: Holdfast | None = None
_setting_error: ConfigError | None = None


def the_app() -> Holdfast:
    """Return the app of the settings. The first call creates it.

    If the setting is invalid, the app can declare tasks, but every use of its store raises the error. So modules with
    tasks can be imported, and the system check can report the error.
    """
    global _app, _setting_error
    with _lock:
        if _app is None:
            set_up()
            if not apps.apps_ready:
                raise ConfigError(
                    f"{TARGET} was imported while Django loads its apps: import it in a module like tasks.py, not in"
                    " an app's __init__.py or apps.py"
                )
            remember_databases()
            try:
                _app = make_app(read_setting())
                DjangoStore(_app, getattr(_app, "alias", None))
            except ConfigError as error:
                _setting_error = error
                _app = Holdfast(IN_MEMORY, name=_project(), secret=(), public_url="")
                _app._bind(InvalidStore(error), IN_MEMORY)
            _app._hooks.around_calls.append(fresh_connections)
            _app._hooks.at_thread_end.append(close_connections)
            _app.on_stop(close_async_connections)
            _app.on_failure(failed_run)
        if runs_tests() and isinstance(_app.store, DjangoStore):
            _app.store.current()  # also sets the app's URL
        return _app


def failed_run(info: RunInfo[Any]) -> None:
    """Send Django's task signal for a run that failed, if Django's task interface is in use."""
    backend = sys.modules.get(f"{__package__}.backend")
    if backend is not None:
        fresh_connections()
        backend.send_failed(info)
        fresh_connections()


def setting_error() -> ConfigError | None:
    """Return the error of the setting, if it is invalid."""
    the_app()
    return _setting_error


def existing_app() -> Holdfast | None:
    """Return the app if it was created."""
    return _app


def read_setting() -> dict[str, Any]:
    """Return the setting, after checking its keys."""
    setting = getattr(settings, "HOLDFAST", {})
    if not isinstance(setting, Mapping):
        raise ConfigError(f"setting HOLDFAST must be a dict, not {type(setting).__name__}")
    for unknown in setting.keys() - _TYPES.keys():
        raise ConfigError(f"setting HOLDFAST: unknown key {unknown!r}; the keys are {', '.join(_TYPES)}")
    for key, value in setting.items():
        if not isinstance(value, _TYPES[key]):
            wanted = " or ".join(kind.__name__ for kind in _TYPES[key])
            raise ConfigError(f"setting HOLDFAST: {key} must be a {wanted}, not {type(value).__name__}")
    if "APP" in setting and len(setting) > 1:
        others = ", ".join(key for key in setting if key != "APP")
        raise ConfigError(f'setting HOLDFAST: with "APP", set {others} on your own app instead')
    return dict(setting)


def make_app(setting: Mapping[str, Any]) -> Holdfast:
    """Create the app that a setting describes, without I/O."""
    if "APP" in setting:
        return load_app(setting["APP"])
    options = {
        "schema": setting.get("SCHEMA", "holdfast"),
        "name": setting.get("NAME", _project()),
        "migrate": setting.get("MIGRATE", True),
        "include": [*setting.get("INCLUDE", ()), *task_modules()],
        "keep": setting.get("KEEP", Keep()),
        "keep_events": setting.get("KEEP_EVENTS"),
        "keep_audit": setting.get("KEEP_AUDIT", DEFAULT_KEEP_AUDIT),
        "keep_keys": setting.get("KEEP_KEYS"),
        "secret": setting.get("SECRET"),
        "public_url": setting.get("PUBLIC_URL"),
    }
    url = setting.get("URL") or os.environ.get("HOLDFAST_URL")
    if url is None:
        return DjangoHoldfast(setting.get("DATABASE", "default"), **options)
    if "DATABASE" in setting and "URL" in setting:
        raise ConfigError('setting HOLDFAST has both "URL" and "DATABASE": remove one')
    _refuse_shared_file(url)
    return Holdfast(url, **options)


class DjangoHoldfast(Holdfast):
    """An app that stores its runs in one of Django's databases."""

    def __init__(self, alias: str, **options: Any) -> None:
        self.alias = alias
        """The database's alias in `DATABASES`."""
        if alias not in connections:
            raise ConfigError(f"setting HOLDFAST: database {alias!r} is not in DATABASES")
        connection = connections[alias]
        if connection.vendor != "postgresql":
            raise ConfigError(
                f"Django's database {alias!r} is {connection.vendor}, which can't store runs: set"
                ' HOLDFAST = {"URL": f"sqlite:///{BASE_DIR / \'holdfast.db\'}"} to use a separate file'
            )
        super().__init__(url_of(connection.settings_dict), **options)

    def _open(self, schema: str) -> Database:
        super()._open(schema)  # Raises a helpful error if psycopg is missing.
        from holdfast.integrations.django.database import DjangoDatabase

        return DjangoDatabase(self.alias, schema)


def _project() -> str:
    """Return the package of the settings, which distinguishes this project's schedules from others."""
    return str(os.environ.get("DJANGO_SETTINGS_MODULE", "django")).partition(".")[0]


def task_modules() -> list[str]:
    """Return the `tasks` modules of the installed apps."""
    return [f"{each.name}.tasks" for each in apps.get_app_configs() if module_has_submodule(each.module, "tasks")]


def _refuse_shared_file(url: str) -> None:
    """Reject Django's own SQLite file: Django opens it with another SQLite library, which breaks locking."""
    if not url.lower().startswith("sqlite:"):
        return
    own_path = Path(sqlite_path(url)).resolve()
    for alias, database in settings.DATABASES.items():
        django_path = str(database.get("NAME") or "")
        if database.get("ENGINE", "").endswith("sqlite3") and Path(django_path).resolve() == own_path:
            raise ConfigError(
                f"setting HOLDFAST: the URL is the file of Django's database {alias!r}: use a separate file; two"
                " SQLite libraries in one process break file locking"
            )
