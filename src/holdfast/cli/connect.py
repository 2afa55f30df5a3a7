"""From what was given on the command line to an app, or to a `Control` of its database.

The database: `--url`; else that of the app from `--app`, `$HOLDFAST_APP` or pyproject.toml; else `$HOLDFAST_URL`; else
`sqlite:///holdfast.db`, if there is such a file. The schema: `--schema`; else the app's; else `holdfast`. What else the
app says, of its code and how payloads are kept, counts wherever it works.
"""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from holdfast.app import DEFAULT_URL, Holdfast
from holdfast.cli.output import note
from holdfast.cli.root import SharedOptions
from holdfast.control import Control
from holdfast.control.open import empty_control, open_control
from holdfast.database import open_database
from holdfast.database.dialect import Dialect
from holdfast.errors import ConfigError

HOW = 'give --app module:app, set $HOLDFAST_APP, or write [tool.holdfast] app = "module:app" in pyproject.toml'


def find_target(shared: str | None) -> str | None:
    """What names the app, if anything does."""
    return shared or os.environ.get("HOLDFAST_APP") or _from_pyproject()


def load_app(shared: str | None) -> Holdfast:
    """Import the app. The current folder is on the path."""
    target = find_target(shared)
    if not target:
        raise ConfigError(f"which app? {HOW}")
    module_name, _, attribute = target.partition(":")
    if not module_name or not attribute or not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigError(f"{target!r} doesn't name an app: write it as module:app, like shop.tasks:app")
    here = str(Path.cwd())
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise _broken(module_name, error) from error
        raise ConfigError(f"there is no module {error.name!r} here ({here}) or installed") from None
    except Exception as error:
        raise _broken(module_name, error) from error
    app: object = module
    for part in attribute.split("."):
        app = getattr(app, part, None)
    if not isinstance(app, Holdfast):
        found = "nothing" if app is None else f"a {type(app).__name__}"
        raise ConfigError(f"{target!r} should be a Holdfast app, but {attribute!r} in {module_name} is {found}")
    return app


def _broken(module: str, error: Exception) -> ConfigError:
    why = f"{type(error).__name__}: {error}"
    return ConfigError(f"the app's module {module} can't be imported: {why}; --debug shows where")


def _from_pyproject() -> str | None:
    try:
        settings = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"pyproject.toml can't be read: {error}") from None
    ours = settings.get("tool", {}).get("holdfast")
    app = ours.get("app") if isinstance(ours, dict) else None
    return app if isinstance(app, str) else None


WHICH = (
    "which database? there is no holdfast.db here: give --url, or --app module:app, set $HOLDFAST_URL or $HOLDFAST_APP,"
    ' or write [tool.holdfast] app = "module:app" in pyproject.toml'
)


class Target(NamedTuple):
    """Where the work is, and the code that is known."""

    url: str
    schema: str
    app: Holdfast | None

    def work(self, *, migrate: bool = True) -> Holdfast:
        """The app, at work there; one without code, where none is known."""
        if self.app is None:
            return Holdfast(self.url, schema=self.schema, migrate=migrate)
        if (self.app.url, _schema_of(self.app)) != (self.url, self.schema):
            there = open_database(self.url, self.schema)
            self.app._bind(self.app.store.beside(there, migrate=migrate), self.url)
        return self.app


def load_worker_app(shared: SharedOptions) -> Holdfast:
    """The app. With --url it works there, if it doesn't name a database of its own."""
    if shared.url is not None:
        os.environ["HOLDFAST_URL"] = shared.url
    app = load_app(shared.app)
    if shared.url is not None and app.url != shared.url:
        shown = app.store.database.display_url
        raise ConfigError(
            f"the app names its own database, {shown}: leave --url out, or let the app read $HOLDFAST_URL"
        )
    if shared.schema is not None and shared.schema != _schema_of(app):
        raise ConfigError(f"the app names its own schema, {_schema_of(app)}: leave --schema out")
    return app


def resolve_target(shared: SharedOptions, app: Holdfast | None = None) -> Target:
    """The database that a command is about; the code only where it is named, needed to find that, or at hand."""
    if app is None and (shared.app or (shared.url is None and find_target(None))):
        app = load_app(shared.app)
    schema = shared.schema or (_schema_of(app) if app else Dialect.schema)
    if shared.url is not None:
        return Target(shared.url, schema, app)
    if app is not None:
        return Target(app.url, schema, app)
    url = os.environ.get("HOLDFAST_URL")
    if not url and Path("holdfast.db").exists():
        url = DEFAULT_URL
    if not url:
        raise ConfigError(WHICH)
    return Target(url, schema, None)


def _schema_of(app: Holdfast) -> str:
    return app.store.database.dialect.schema


@contextmanager
def connect(shared: SharedOptions, *, make: bool = False, app: Holdfast | None = None) -> Iterator[Control]:
    """The control of the database, whether or not it has our tables; `make`: also of a SQLite file that isn't there
    yet; `app`: with its code, whatever else was said about the app."""
    place = resolve_target(shared, app)
    registry, payloads = (place.app.registry, place.app.store.payloads) if place.app else (None, None)
    with open_control(place.url, place.schema, registry, payloads=payloads, make=make) as control:
        yield control


@contextmanager
def connect_or_empty(shared: SharedOptions, *, app: Holdfast | None = None) -> Iterator[Control]:
    """The same for commands about what is there: a database without our tables counts as one where nothing happened."""
    with connect(shared, app=app) as control:
        if control.upkeep.tables().version > 0:
            yield control
            return
        note(f"{control.database} has no tables yet: nothing was ever enqueued there")
    with empty_control(app.registry if app else None) as control:
        yield control
