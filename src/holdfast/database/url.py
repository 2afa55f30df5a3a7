"""Database URLs as they may be shown and logged: without passwords; and what is wrong with them, in words."""

from __future__ import annotations

import re

from holdfast.errors import ConfigError

_SECRET = re.compile(r"(?<=[?&])(ssl)?password=[^&]*&?", re.IGNORECASE)
_ENCODE = "write such characters percent-encoded: @ as %40, / as %2F, : as %3A, % as %25"


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    scheme, mark, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    if "@" in host:
        user = re.split("[:@]", host, maxsplit=1)[0]
        host = f"{user}@{host.rpartition('@')[2]}"
    return _SECRET.sub("", f"{scheme}{mark}{host}{slash}{path}").rstrip("?&")


def shown(url: str) -> str:
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
