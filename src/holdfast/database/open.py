"""From a URL to a database."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from holdfast.database.base import Database
from holdfast.database.url import shown
from holdfast.errors import ConfigError

FORMS = "sqlite:///jobs.db (relative), sqlite:////var/lib/jobs.db (absolute) or postgresql://user@host/database"


def open_database(url: str, schema: str) -> Database:
    """The database of a URL. Does no I/O; the driver is loaded here, so that only what is used is imported."""
    if not isinstance(url, str) or not url.strip():
        raise ConfigError(f"the database URL must be text like {FORMS}, but is {type(url).__name__} {str(url)[:40]!r}")
    scheme = url.split(":", 1)[0].lower() if ":" in url else ""
    if scheme == "sqlite":
        from holdfast.database.sqlite import SqliteDatabase

        return SqliteDatabase(sqlite_path(url))
    if scheme in ("postgresql", "postgres"):
        if "://" not in url:
            raise ConfigError(f"a PostgreSQL URL begins with postgresql://; write {FORMS}")
        try:
            from holdfast.database.postgres import PostgresDatabase
        except ModuleNotFoundError as error:
            if error.name != "psycopg":
                raise
            raise ConfigError("PostgreSQL needs psycopg: pip install 'holdfast[postgres]'") from None
        return PostgresDatabase(url, schema)
    found = f"{scheme}:" if re.fullmatch("[a-z][a-z0-9+.-]*", scheme) else shown(url)
    raise ConfigError(f"unknown database URL ({found}); write {FORMS}")


def sqlite_path(url: str) -> str:
    """The path in a sqlite: URL; `:memory:` for a database in memory."""
    parts = urlsplit(url) if url.lower().startswith("sqlite:///") else None
    if parts is None or parts.query or parts.fragment:
        raise ConfigError(
            f"that is no SQLite URL ({shown(url)}); write sqlite:///jobs.db or sqlite:////var/lib/jobs.db"
        )
    path = unquote(parts.path.removeprefix("/"))
    if not path or path.endswith("/") or "\0" in path:
        raise ConfigError(
            f"that URL names no file ({shown(url)}); write sqlite:///jobs.db or sqlite:////var/lib/jobs.db"
        )
    return path
