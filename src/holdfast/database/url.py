"""Database URLs as they may be shown and logged: without passwords; and what is wrong with them, in words."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from holdfast.database.base import Database
from holdfast.errors import ConfigError

_SECRET = re.compile(r"(?<=[?&])(ssl)?password=[^&]*&?", re.IGNORECASE)
_ENCODE = "write such characters percent-encoded: @ as %40, / as %2F, : as %3A, % as %25"


def redact_password(url: str) -> str:
    """The URL as it may be shown."""
    scheme, mark, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    if "@" in host:
        user = re.split("[:@]", host, maxsplit=1)[0]
        host = f"{user}@{host.rpartition('@')[2]}"
    return _SECRET.sub("", f"{scheme}{mark}{host}{slash}{path}").rstrip("?&")


def redacted_repr(url: str) -> str:
    """Something that was given as a URL, quoted and cut; nothing of it when there might be a secret in it."""
    doubtful = "password" in url.lower() or "@" in url
    return "not shown, it may hold a password" if doubtful else repr(url[:120])


def check_postgres_url(url: str) -> None:
    """Refuse what libpq would take for something else, with parts of a password in its message."""
    try:
        url.encode()
    except UnicodeEncodeError:
        raise ConfigError("the database URL has a character that can't be encoded; write it anew") from None
    if "\0" in url:
        raise ConfigError("the database URL has a NUL character in it; write it anew")
    host, _, path = url.partition("://")[2].partition("/")
    unescaped = host.count("@") > 1 or ("@" not in host and "@" in path.partition("?")[0])
    if unescaped:
        raise ConfigError(
            f"the user or password in the database URL has an @ or / that isn't part of its form; {_ENCODE}"
        )
    if re.search("%(?![0-9a-fA-F]{2})", url):
        raise ConfigError(f"the database URL has a % that isn't followed by two hexadecimal digits; {_ENCODE}")


def check_ports(ports: object, url: str) -> None:
    """Each of the comma-separated ports is a number."""
    for port in str(ports or "").split(","):
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ConfigError(f"the port in {url} must be a number between 1 and 65535")


URL_EXAMPLES = "sqlite:///jobs.db (relative), sqlite:////var/lib/jobs.db (absolute) or postgresql://user@host/database"


def open_database(url: str, schema: str) -> Database:
    """The database of a URL. Does no I/O; the driver is loaded here, so that only what is used is imported."""
    if not isinstance(url, str) or not url.strip():
        raise ConfigError(
            f"the database URL must be text like {URL_EXAMPLES}, but is {type(url).__name__} {str(url)[:40]!r}"
        )
    scheme = url.split(":", 1)[0].lower() if ":" in url else ""
    if scheme == "sqlite":
        from holdfast.database.sqlite import SqliteDatabase

        return SqliteDatabase(sqlite_path(url))
    if scheme in ("postgresql", "postgres"):
        if "://" not in url:
            raise ConfigError(f"a PostgreSQL URL begins with postgresql://; write {URL_EXAMPLES}")
        try:
            from holdfast.database.postgres import PostgresDatabase
        except ModuleNotFoundError as error:
            if error.name != "psycopg":
                raise
            raise ConfigError("PostgreSQL needs psycopg: pip install 'holdfast[postgres]'") from None
        return PostgresDatabase(url, schema)
    found = f"{scheme}:" if re.fullmatch("[a-z][a-z0-9+.-]*", scheme) else redacted_repr(url)
    raise ConfigError(f"unknown database URL ({found}); write {URL_EXAMPLES}")


def sqlite_path(url: str) -> str:
    """The path in a sqlite: URL; `:memory:` for a database in memory."""
    parts = urlsplit(url) if url.lower().startswith("sqlite:///") else None
    if parts is None or parts.query or parts.fragment:
        raise ConfigError(
            f"that is no SQLite URL ({redacted_repr(url)}); write sqlite:///jobs.db or sqlite:////var/lib/jobs.db"
        )
    path = unquote(parts.path.removeprefix("/"))
    if not path or path.endswith("/") or "\0" in path:
        raise ConfigError(
            f"that URL names no file ({redacted_repr(url)}); write sqlite:///jobs.db or sqlite:////var/lib/jobs.db"
        )
    return path
