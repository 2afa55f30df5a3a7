"""Resolve what the command line names: the app, and the `Control` of its database.

The app comes from `--app`, `$HOLDFAST_APP` or pyproject.toml. The database is `--url`, else the app's, else
`$HOLDFAST_URL`, else `sqlite:///holdfast.db` if that file exists. The schema is `--schema`, else the app's, else
`holdfast`. The app's registry and payload settings apply to whichever database is used.
"""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from holdfast.app import DEFAULT_URL, Holdfast
from holdfast.cli.output import note
from holdfast.cli.root import SharedOptions
from holdfast.control import Control
from holdfast.control.audit import AuditControl, acting
from holdfast.control.open import DEFAULT_SCHEMA, IN_MEMORY, empty_control, open_control, reopen_store
from holdfast.errors import ConfigError
from holdfast.model.names import actor_or_user

NAME_AN_APP = 'pass --app module:app, set $HOLDFAST_APP, or add [tool.holdfast] app = "module:app" to pyproject.toml'
NAME_A_DATABASE = (
    "no database given, and there is no holdfast.db here: pass --url or --app module:app, set $HOLDFAST_URL or"
    ' $HOLDFAST_APP, or add [tool.holdfast] app = "module:app" to pyproject.toml'
)


class Target(NamedTuple):
    """The database that a command is about, and the app, if one is named."""

    url: str
    schema: str
    app: Holdfast | None

    def open_app(self, *, migrate: bool = True) -> Holdfast:
        """Return the app bound to this database, or an app without tasks if none is named."""
        if self.app is None:
            return Holdfast(self.url, schema=self.schema, migrate=migrate)
        if (self.app.url, _schema_of(self.app)) != (self.url, self.schema):
            self.app._bind(reopen_store(self.app.store, self.url, self.schema, migrate=migrate), self.url)
        return self.app


# Apps


def find_app_name(given: str | None) -> str | None:
    """Return the `module:app` that is configured, if any."""
    return given if given is not None else os.environ.get("HOLDFAST_APP") or _from_pyproject()


def load_app(given: str | None) -> Holdfast:
    """Import the app. The current directory is on the import path."""
    target = find_app_name(given)
    if target is None:
        raise ConfigError(f"no app given: {NAME_AN_APP}")
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigError(f"{target!r} doesn't name an app: write it as module:app, for example shop.tasks:app")
    here = str(Path.cwd())
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise _import_error(module_name, error) from error
        raise ConfigError(f"module {error.name!r} is neither in {here} nor installed") from None
    except Exception as error:
        raise _import_error(module_name, error) from error
    app: object = module
    for part in attribute.split("."):
        app = getattr(app, part, None)
    if not isinstance(app, Holdfast):
        found = "missing" if app is None else f"a {type(app).__name__}"
        raise ConfigError(f"{target!r} must be a Holdfast app, but {attribute!r} in {module_name} is {found}")
    return app


def _import_error(module: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"the app's module {module} can't be imported: {type(error).__name__}: {error}; --debug shows the traceback"
    )


def _from_pyproject() -> str | None:
    try:
        settings = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"pyproject.toml can't be read: {error}") from None
    section = settings.get("tool", {}).get("holdfast")
    app = section.get("app") if isinstance(section, dict) else None
    return app if isinstance(app, str) else None


def load_worker_app(shared: SharedOptions) -> Holdfast:
    """Load the app of a worker. `--url` is passed on in $HOLDFAST_URL; an app with its own URL rejects another one."""
    if shared.url is not None:
        os.environ["HOLDFAST_URL"] = shared.url
    app = load_app(shared.app)
    if shared.url is not None and app.url != shared.url:
        own = app.store.database.display_url
        raise ConfigError(f"the app sets its own database, {own}: omit --url, or let the app use $HOLDFAST_URL")
    if shared.schema is not None and shared.schema != _schema_of(app):
        raise ConfigError(f"the app sets its own schema, {_schema_of(app)}: omit --schema")
    return app


def _schema_of(app: Holdfast) -> str:
    return app.store.database.dialect.schema


# Databases


def resolve_target(shared: SharedOptions, app: Holdfast | None = None) -> Target:
    """Resolve the database of a command. Imports the app only if it is named or needed to find the database."""
    if app is None and (shared.app is not None or (shared.url is None and find_app_name(None))):
        app = load_app(shared.app)
    schema = shared.schema
    if schema is None:
        schema = _schema_of(app) if app else DEFAULT_SCHEMA
    if shared.url is not None:
        return Target(shared.url, schema, app)
    if app is not None:
        return Target(app.url, schema, app)
    return Target(find_database(), schema, None)


def find_database() -> str:
    """Return the URL of the database that a command without options and app is about."""
    url = os.environ.get("HOLDFAST_URL")
    if not url and Path("holdfast.db").exists():
        url = DEFAULT_URL
    if not url:
        raise ConfigError(NAME_A_DATABASE)
    return url


def schema_on_postgres(shared: SharedOptions) -> str:
    """Return the schema of a command that is about PostgreSQL only and needs no connection."""
    app = load_app(shared.app) if find_app_name(shared.app) else None
    url = shared.url or (app.url if app else os.environ.get("HOLDFAST_URL")) or ""
    if url.startswith("sqlite:"):
        raise ConfigError("SQLite has no roles: pass the --url of a PostgreSQL database, or only --schema")
    if shared.schema is not None:
        return shared.schema
    return _schema_of(app) if app else DEFAULT_SCHEMA


@contextmanager
def connect(shared: SharedOptions, *, make: bool = False, app: Holdfast | None = None) -> Iterator[Control]:
    """Open the control of the database, with or without tables.

    `make` creates a missing SQLite file; `app` overrides the app that the options name.
    """
    target = resolve_target(shared, app)
    if target.app is not None and target.url == target.app.url == IN_MEMORY:
        with _acting():
            yield Control(
                target.app.store, target.app.registry, target.app.links
            )  # other connections would see an empty database
        return
    registry, payloads = (target.app.registry, target.app.store.payloads) if target.app else (None, None)
    links = target.app.links if target.app else None
    with (
        open_control(target.url, target.schema, registry, payloads=payloads, links=links, make=make) as control,
        _acting(),
    ):
        yield control


@contextmanager
def recorded(app: Holdfast, action: str, subject: str, **detail: Any) -> Iterator[None]:
    """Record what a command changes with the app itself in the audit log."""
    with _acting(), AuditControl(app.store).record(action, subject, **detail):
        yield


def _acting() -> AbstractContextManager[None]:
    """Attribute what a command changes to `--by`, or to the user of this process."""
    context = click.get_current_context(silent=True)
    return acting(actor_or_user(None if context is None else context.params.get("by")), "cli")


@contextmanager
def connect_or_empty(shared: SharedOptions, *, app: Holdfast | None = None) -> Iterator[Control]:
    """Open the control of the database; one without tables counts as empty."""
    with connect(shared, app=app) as control:
        if control.upkeep.tables().version > 0:
            yield control
            return
        note(f"{control.database} has no Holdfast tables: nothing has been enqueued")
    with empty_control(app.registry if app else None) as control:
        yield control
