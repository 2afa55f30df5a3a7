"""Django's database connections: their URLs, and how they are maintained in worker threads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import django
from asgiref.sync import sync_to_async
from django.apps import apps
from django.db import close_old_connections, connections

from holdfast.integrations.django.test_databases import use_databases_of_parent

_PLAIN_HOST = re.compile(r"[A-Za-z0-9._-]+")
_DJANGO_OPTIONS = {"assume_role", "context", "cursor_factory", "isolation_level", "pool", "prepare_threshold"}
"""Options that are not parameters of a PostgreSQL connection."""


def set_up() -> None:
    """Set Django up if it isn't: for `holdfast --app …`, and in the process of a single task."""
    if not apps.ready and not apps.loading:
        django.setup()
    use_databases_of_parent()


def fresh_connections() -> None:
    """Close broken and expired connections of this thread, as Django does around a request."""
    set_up()
    close_old_connections()


def close_connections() -> None:
    """Close all connections of this thread, whatever `CONN_MAX_AGE` says, because the thread ends."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


async def close_async_connections() -> None:
    """Close the connections of Django's async ORM, which have a thread of their own."""
    await sync_to_async(close_connections)()


def url_of(database: Mapping[str, Any]) -> str:
    """Return the URL of an entry of `DATABASES`."""
    given = {key: str(database.get(key) or "") for key in ("USER", "PASSWORD", "HOST", "PORT", "NAME")}
    options = database.get("OPTIONS") or {}
    more = {
        name: str(value)
        for name, value in options.items()
        if name not in _DJANGO_OPTIONS and isinstance(value, str | int) and not isinstance(value, bool)
    }
    if role := options.get("assume_role"):
        more["options"] = f"{more.get('options', '')} -c role={_escaped(role)}".strip()
    user = quote(given["USER"], safe="")
    if given["PASSWORD"] and user:
        user += f":{quote(given['PASSWORD'], safe='')}"
    elif given["PASSWORD"]:
        more["password"] = given["PASSWORD"]
    host = given["HOST"]
    if host and not _PLAIN_HOST.fullmatch(host):  # A socket directory, an IPv6 address or several hosts.
        more["host"], host = host, ""
    if given["PORT"] and not host:
        more["port"] = given["PORT"]
    elif given["PORT"]:
        host += f":{given['PORT']}"
    authority = f"{user}@{host}" if user else host
    query = f"?{urlencode(more, quote_via=quote)}" if more else ""
    return f"postgresql://{authority}/{quote(given['NAME'], safe='')}{query}"


def _escaped(role: str) -> str:
    return re.sub(r"([\\\s])", r"\\\1", role)
