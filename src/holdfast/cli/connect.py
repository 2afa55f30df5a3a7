"""From what was given on the command line to an app, or to a `Control` of its database.

The database: `--url`; else that of the app from `--app`, `$HOLDFAST_APP` or pyproject.toml; else `$HOLDFAST_URL`; else
`sqlite:///holdfast.db`, if there is such a file. The schema: `--schema`; else the app's; else `holdfast`. What else the
app says, of its code and how payloads are kept, counts wherever it works.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from holdfast.app import DEFAULT_URL, Holdfast
from holdfast.cli.apps import find_target, load_app
from holdfast.cli.output import note
from holdfast.cli.root import Given
from holdfast.control import Control
from holdfast.control.open import nothing_yet, open_control
from holdfast.database import open_database
from holdfast.database.dialect import Dialect
from holdfast.errors import ConfigError

WHICH = (
    "which database? there is no holdfast.db here: give --url, or --app module:app, set $HOLDFAST_URL or $HOLDFAST_APP,"
    ' or write [tool.holdfast] app = "module:app" in pyproject.toml'
)


class Place(NamedTuple):
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


def app_of(given: Given) -> Holdfast:
    """The app. With --url it works there, if it doesn't name a database of its own."""
    if given.url is not None:
        os.environ["HOLDFAST_URL"] = given.url
    app = load_app(given.app)
    if given.url is not None and app.url != given.url:
        shown = app.store.database.display_url
        raise ConfigError(
            f"the app names its own database, {shown}: leave --url out, or let the app read $HOLDFAST_URL"
        )
    if given.schema is not None and given.schema != _schema_of(app):
        raise ConfigError(f"the app names its own schema, {_schema_of(app)}: leave --schema out")
    return app


def place_of(given: Given, app: Holdfast | None = None) -> Place:
    """The database that a command is about; the code only where it is named, needed to find that, or at hand."""
    if app is None and (given.app or (given.url is None and find_target(None))):
        app = load_app(given.app)
    schema = given.schema or (_schema_of(app) if app else Dialect.schema)
    if given.url is not None:
        return Place(given.url, schema, app)
    if app is not None:
        return Place(app.url, schema, app)
    url = os.environ.get("HOLDFAST_URL")
    if not url and Path("holdfast.db").exists():
        url = DEFAULT_URL
    if not url:
        raise ConfigError(WHICH)
    return Place(url, schema, None)


def _schema_of(app: Holdfast) -> str:
    return app.store.database.dialect.schema


@contextmanager
def opened(given: Given, *, make: bool = False, app: Holdfast | None = None) -> Iterator[Control]:
    """The control of the database, whether or not it has our tables; `make`: also of a SQLite file that isn't there
    yet; `app`: with its code, whatever else was said about the app."""
    place = place_of(given, app)
    registry, payloads = (place.app.registry, place.app.store.payloads) if place.app else (None, None)
    with open_control(place.url, place.schema, registry, payloads=payloads, make=make) as control:
        yield control


@contextmanager
def opened_or_empty(given: Given, *, app: Holdfast | None = None) -> Iterator[Control]:
    """The same for commands about what is there: a database without our tables counts as one where nothing happened."""
    with opened(given, app=app) as control:
        if control.upkeep.tables().version > 0:
            yield control
            return
        note(f"{control.database} has no tables yet: nothing was ever enqueued there")
    with nothing_yet(app.registry if app else None) as control:
        yield control
