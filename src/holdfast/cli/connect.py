"""From what was given on the command line to an app, or to a `Control` of its database.

The database: `--url`; else that of the app from `--app`, `$HOLDFAST_APP` or pyproject.toml; else `$HOLDFAST_URL`; else
`sqlite:///holdfast.db`, if there is such a file.
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
from holdfast.errors import ConfigError
from holdfast.task.registry import Registry

DEFAULT_SCHEMA = "holdfast"
WHICH = (
    "which database? give --url, or --app module:app, set $HOLDFAST_URL or $HOLDFAST_APP, or write"
    ' [tool.holdfast] app = "module:app" in pyproject.toml'
)


class Place(NamedTuple):
    """Where the work is, and the code that is known."""

    url: str
    schema: str
    app: Holdfast | None

    @property
    def registry(self) -> Registry | None:
        return self.app.registry if self.app else None


def app_of(given: Given) -> Holdfast:
    """The app. With --url it works there, if it doesn't name a database of its own."""
    if given.url is not None:
        os.environ["HOLDFAST_URL"] = given.url
    app = load_app(given.app)
    if given.url is not None and app.url != given.url:
        shown = app.store.database.shown
        raise ConfigError(
            f"the app names its own database, {shown}: leave --url out, or let the app read $HOLDFAST_URL"
        )
    return app


def place_of(given: Given) -> Place:
    """The database that a command is about; the code only where it is named or needed to find that."""
    if given.url is not None:
        return Place(given.url, given.schema or DEFAULT_SCHEMA, load_app(given.app) if given.app else None)
    if find_target(given.app):
        app = load_app(given.app)
        return Place(app.url, given.schema or _schema_of(app), app)
    url = os.environ.get("HOLDFAST_URL")
    if not url and Path("holdfast.db").exists():
        url = DEFAULT_URL
    if not url:
        raise ConfigError(WHICH)
    return Place(url, given.schema or DEFAULT_SCHEMA, None)


def _schema_of(app: Holdfast) -> str:
    return str(getattr(app.store.database.dialect, "schema", DEFAULT_SCHEMA))


@contextmanager
def changing(given: Given, *, make: bool = False, code: Registry | None = None) -> Iterator[Control]:
    """The control of a database that has our tables; `make`: also of a SQLite file that isn't there yet; `code`: with
    these tasks, whatever else was said about the app."""
    place = place_of(given)
    with open_control(place.url, place.schema, code or place.registry, make=make) as control:
        yield control


@contextmanager
def reading(given: Given, *, code: Registry | None = None) -> Iterator[Control]:
    """The same for commands that only look: a database without our tables counts as one where nothing happened."""
    with changing(given, code=code) as control:
        if control.upkeep.tables().version > 0:
            yield control
            return
        note(f"{control.database} has no tables yet: nothing was ever enqueued there")
    with nothing_yet(code) as control:
        yield control
