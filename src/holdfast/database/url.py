"""Database URLs: open the database of a URL, check URLs, and redact passwords."""

from __future__ import annotations

import re
from urllib.parse import unquote, urlsplit

from holdfast.database.base import Database
from holdfast.database.dialect import check_schema
from holdfast.errors import ConfigError

URL_EXAMPLES = "sqlite:///jobs.db (relative), sqlite:////var/lib/jobs.db (absolute) or postgresql://user@host/database"

_SQLALCHEMY_DRIVER = re.compile(r"^(postgres(?:ql)?)\+(?:psycopg|psycopg2|psycopg_async|asyncpg)(?=://)", re.IGNORECASE)
_SQLITE_EXAMPLES = "use sqlite:///jobs.db or sqlite:////var/lib/jobs.db"
_SECRET = re.compile(r"(?<=[?&])(ssl)?password=[^&]*&?", re.IGNORECASE)
_ENCODE = "percent-encode such characters: @ as %40, / as %2F, : as %3A, % as %25"


def without_driver(url: str) -> str:
    """Return the URL without the driver that SQLAlchemy's URLs may name: `postgresql+psycopg://…`."""
    return _SQLALCHEMY_DRIVER.sub(r"\1", url)


def redact_password(url: str) -> str:
    """Return the URL without its password."""
    scheme, mark, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    if "@" in host:
        user = re.split("[:@]", host, maxsplit=1)[0]
        host = f"{user}@{host.rpartition('@')[2]}"
    return _SECRET.sub("", f"{scheme}{mark}{host}{slash}{path}").rstrip("?&")


def redacted_repr(url: str) -> str:
    """Return a malformed URL quoted and truncated, or a placeholder if it may contain a password."""
    is_doubtful = "password" in url.lower() or "@" in url
    return "not shown because it may contain a password" if is_doubtful else repr(url[:120])


def check_postgres_url(url: str) -> None:
    """Reject URLs that libpq misparses, because its message would show parts of the password."""
    try:
        url.encode()
    except UnicodeEncodeError:
        raise ConfigError("the database URL contains a character that can't be encoded as UTF-8") from None
    if "\0" in url:
        raise ConfigError("the database URL contains a NUL character")
    host, _, path = url.partition("://")[2].partition("/")
    if host.count("@") > 1 or ("@" not in host and "@" in path.partition("?")[0]):
        raise ConfigError(f"the user or password in the database URL contains an unescaped @ or /; {_ENCODE}")
    if re.search("%(?![0-9a-fA-F]{2})", url):
        raise ConfigError(f"the database URL contains a % that isn't followed by two hexadecimal digits; {_ENCODE}")


def check_ports(ports: object, url: str) -> None:
    """Check the comma-separated ports of a URL."""
    for port in str(ports or "").split(","):
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
            raise ConfigError(f"the port in {url} must be a number between 1 and 65535")


def open_database(url: str, schema: str) -> Database:
    """Return the database of a URL, without any I/O. Only the driver that the URL needs is imported."""
    if not isinstance(url, str) or not url.strip():
        raise ConfigError(
            f"the database URL must be a string such as {URL_EXAMPLES}, not {type(url).__name__} {str(url)[:40]!r}"
        )
    check_schema(schema)  # also for SQLite, which has none: a script shouldn't fail only once it uses PostgreSQL
    url = without_driver(url)
    scheme = url.split(":", 1)[0].lower() if ":" in url else ""
    if scheme == "sqlite":
        from holdfast.database.sqlite import SqliteDatabase

        return SqliteDatabase(sqlite_path(url))
    if scheme in ("postgresql", "postgres"):
        if "://" not in url:
            raise ConfigError(f"a PostgreSQL URL starts with postgresql://; use {URL_EXAMPLES}")
        try:
            from holdfast.database.postgres import PostgresDatabase
        except ModuleNotFoundError as error:
            if error.name != "psycopg":
                raise
            raise ConfigError("PostgreSQL requires psycopg: pip install 'holdfast[postgres]'") from None
        return PostgresDatabase(url, schema)
    found = f"{scheme}:" if re.fullmatch("[a-z][a-z0-9+.-]*", scheme) else redacted_repr(url)
    raise ConfigError(f"unsupported database URL ({found}); use {URL_EXAMPLES}")


def sqlite_path(url: str) -> str:
    """Return the path of a sqlite: URL; `:memory:` means an in-memory database."""
    parts = urlsplit(url) if url.lower().startswith("sqlite:///") else None
    if parts is None or parts.query or parts.fragment:
        raise ConfigError(f"invalid SQLite URL ({redacted_repr(url)}); {_SQLITE_EXAMPLES}")
    path = unquote(parts.path.removeprefix("/"))
    if not path or path.endswith("/") or "\0" in path:
        raise ConfigError(f"the SQLite URL doesn't name a file ({redacted_repr(url)}); {_SQLITE_EXAMPLES}")

    return path
