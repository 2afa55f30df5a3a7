"""Open a `Control` from a database URL without creating a file or tables."""

from __future__ import annotations

from pathlib import Path

from holdfast.control.control import Control
from holdfast.database import open_database
from holdfast.database.url import sqlite_path
from holdfast.errors import ConfigError
from holdfast.model.payloads import Payloads
from holdfast.model.signed_tokens import LinkSettings
from holdfast.store import Store
from holdfast.task.registry import Registry

IN_MEMORY = "sqlite:///:memory:"
DEFAULT_SCHEMA = "holdfast"


def open_control(
    url: str,
    schema: str = DEFAULT_SCHEMA,
    registry: Registry | None = None,
    *,
    payloads: Payloads | None = None,
    links: LinkSettings | None = None,
    make: bool = False,
) -> Control:
    """Open the control of a database.

    `registry`, `payloads` and `links` come from an app (`app.registry`, `app.store.payloads`, `app.links`): pass them
    for operations that need its code, and for an app with a `codec`, its own size limits or a `secret`. A missing
    SQLite file is an error unless `make` is set. Tables are created or migrated only by `control.upkeep.migrate()`.
    """
    if not make:
        check_exists(url)
    return Control(Store(open_database(url, schema), migrate=False, payloads=payloads), registry, links)


def check_exists(url: str) -> None:
    """Raise ConfigError if this is the URL of a SQLite file that doesn't exist."""
    if url.startswith("sqlite:"):
        path = sqlite_path(url)
        if path != ":memory:" and not Path(path).absolute().parent.is_dir():
            raise ConfigError(f"the directory of {path} does not exist: create it, or pass another --url")
        if path != ":memory:" and not Path(path).exists():
            create = f"`holdfast migrate --url {url}`"
            raise ConfigError(f"SQLite file {path} does not exist: pass another --url, or create it with {create}")


def empty_control(registry: Registry | None = None) -> Control:
    """Open the control of an empty in-memory database, as a stand-in for a database without tables."""
    return Control(Store(open_database(IN_MEMORY, DEFAULT_SCHEMA)), registry)


def reopen_store(
    store: Store,
    url: str,
    schema: str | None = None,
    *,
    migrate: bool | None = None,
    read_timeout_s: float | None = None,
) -> Store:
    """Return a store with the same settings on its own connections, to the same or another database."""
    database = open_database(url, store.database.dialect.schema if schema is None else schema)
    if read_timeout_s is not None:
        database.read_timeout_s = read_timeout_s
    return store.with_database(database, migrate=migrate)
