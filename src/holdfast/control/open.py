"""From a database URL to a `Control` that looks before it touches: it makes no file and no tables."""

from __future__ import annotations

from pathlib import Path

from holdfast.control.control import Control
from holdfast.database import open_database
from holdfast.database.url import sqlite_path
from holdfast.errors import ConfigError
from holdfast.model.payloads import Payloads
from holdfast.store import Store
from holdfast.task.registry import Registry

IN_MEMORY = "sqlite:///:memory:"


def open_control(
    url: str,
    schema: str = "holdfast",
    registry: Registry | None = None,
    *,
    payloads: Payloads | None = None,
    make: bool = False,
) -> Control:
    """The control of a database. `registry` and `payloads`: an app's (`app.registry`, `app.store.payloads`), for what
    needs its code, and for an app with a `codec` or sizes of its own. A SQLite file that isn't there is an error,
    unless `make` is set; tables are neither made nor migrated before someone asks for it."""
    database = open_database(url, schema)
    if database.dialect.name == "sqlite" and not make:
        path = sqlite_path(url)
        if path != ":memory:" and not Path(path).absolute().parent.is_dir():
            raise ConfigError(f"the folder of {path} doesn't exist: make it, or give another --url")
        if path != ":memory:" and not Path(path).exists():
            raise ConfigError(
                f"there is no SQLite file {path}: give another --url, or make it with `holdfast migrate --url {url}`"
            )
    return Control(Store(database, migrate=False, payloads=payloads), registry)


def nothing_yet(registry: Registry | None = None) -> Control:
    """The control of a database in memory, in which nothing ever happened: stands in for one without tables."""
    return Control(Store(open_database(IN_MEMORY, "holdfast")), registry)
