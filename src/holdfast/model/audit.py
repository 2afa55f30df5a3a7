"""Entries of the audit log: who did what, when, from where, and what came of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, TypeAlias
from uuid import UUID

import msgspec

Outcome: TypeAlias = Literal["done", "unchanged", "refused", "failed"]
Via: TypeAlias = Literal["dashboard", "api", "cli", "mcp", "link", "python"]


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One action of an operator."""

    id: UUID
    at: datetime
    by: str
    action: str
    """A verb and a noun, such as `cancel run`."""
    subject: str | None
    """What it was about: the id of a run, or the name of a queue, schedule, limit, …"""
    via: str
    """`dashboard`, `api`, `cli`, `mcp`, `link` or `python`."""
    client: str | None
    """The address of the client; None for the CLI, and for readers that are limited to a tenant."""
    outcome: str | None
    """`done`; `unchanged`: it already was so; `refused`: nothing was changed; `failed`: it may have changed something.
    None: the process ended before it could record the outcome."""
    tenant: str | None
    """The tenant that it concerns; None: none, or several."""
    detail: dict[str, Any]
    """Other parameters, what was changed, and the error. Payloads and arguments are left out."""


class AuditPage(msgspec.Struct, frozen=True):
    """Entries that match, newest first, and the cursor of the next page, None at the end."""

    entries: list[AuditEntry]
    after: UUID | None
    partial: bool = False
    """Whether the scan stopped early, because very many entries didn't match."""
