"""Links to gates: what the token of a link says, its URL, and what a gate remembers of its links."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.clock import Duration, to_datetime, to_datetime_or_none, to_micros
from holdfast.model.names import check_name
from holdfast.model.signed_tokens import LinkSettings

GATE_LINK = "gate link"
"""The purpose of the tokens."""
GATE_LINK_PATH = "/links/gate"
DEFAULT_EXPIRY = timedelta(days=3)
MAX_EXPIRY = timedelta(days=366)
MAX_RECIPIENT_CHARS = 150
MAX_LINKS = 50
"""How many links a gate remembers. All of them are in its row."""
_ID_BYTES = 6

LinkState = Literal["usable", "used", "revoked", "expired", "ended"]
"""`ended`: the gate was decided otherwise, ended or was retried since the link was created."""


class GateLinkToken(msgspec.Struct, frozen=True, array_like=True):
    """The content of a link's token."""

    gate: bytes
    """The id of the gate's run."""
    opening: int
    """The gate's number of records when the link was created: it grows with each decision, end and retry."""
    recipient: str | None
    id: str
    """Which of the links that the gate remembers it is."""


class GateLink(msgspec.Struct, frozen=True):
    """A link with which a person without a login decides a gate."""

    url: str
    expires_at: datetime
    recipient: str | None
    id: str
    """Revokes the link."""


class GateLinkInfo(msgspec.Struct, frozen=True):
    """A link that was created for a gate. Its URL isn't stored."""

    id: str
    recipient: str | None
    state: LinkState
    created_at: datetime
    expires_at: datetime
    used_at: datetime | None = None
    revoked_at: datetime | None = None
    revoked_by: str | None = None


class RememberedLink(msgspec.Struct, omit_defaults=True):
    """What the plan of a gate says about a link. A link that isn't there can't be used."""

    id: str
    opening: int
    created_at: int
    expires_at: int
    recipient: str | None = None
    used_at: int | None = None
    revoked_at: int | None = None
    revoked_by: str | None = None

    def state(self, opening: int, is_undecided: bool, now: int) -> LinkState:
        """Return the state of the link to a gate with this number of records."""
        if self.used_at is not None:
            return "used"
        if self.revoked_at is not None:
            return "revoked"
        if now >= self.expires_at:
            return "expired"
        return "usable" if is_undecided and opening == self.opening else "ended"

    def info(self, state: LinkState) -> GateLinkInfo:
        """Return the link as users see it."""
        return GateLinkInfo(
            self.id,
            self.recipient,
            state,
            to_datetime(self.created_at),
            to_datetime(self.expires_at),
            to_datetime_or_none(self.used_at),
            to_datetime_or_none(self.revoked_at),
            self.revoked_by,
        )


def remembered_links(plan: dict[str, Any]) -> list[RememberedLink]:
    """Return the links that the plan of a gate has; none if they are corrupt, so that none can be used."""
    try:
        return msgspec.convert(plan.get("links", []), list[RememberedLink])
    except msgspec.ValidationError:
        return []


def remember_links(plan: dict[str, Any], links: Sequence[RememberedLink]) -> None:
    """Put the links into the plan of a gate."""
    plan["links"] = msgspec.to_builtins(links)


class LinkRequest(msgspec.Struct, frozen=True):
    """The id of a new link, how long it is valid, in microseconds, and for whom it is."""

    id: str
    lifetime: int
    recipient: str | None

    @classmethod
    def of(cls, expires: Duration, recipient: str | None) -> LinkRequest:
        """Return the checked request for a link."""
        lifetime = to_micros(expires, "expires")
        if not 0 < lifetime <= to_micros(MAX_EXPIRY, "expires"):
            raise ConfigError(f"expires must be positive and at most {MAX_EXPIRY.days} days")
        if recipient is not None:
            check_name(recipient, "recipient", MAX_RECIPIENT_CHARS)
        return cls(secrets.token_hex(_ID_BYTES), lifetime, recipient)

    def remembered(self, opening: int, now: int) -> RememberedLink:
        """Return what a gate remembers of the link."""
        return RememberedLink(self.id, opening, now, now + self.lifetime, self.recipient)

    def link(self, links: LinkSettings, gate: str, opening: int, now: int) -> GateLink:
        """Return the link to a gate."""
        expires_at = now + self.lifetime
        value = GateLinkToken(UUID(gate).bytes, opening, self.recipient, self.id)
        url = links.url(GATE_LINK_PATH, GATE_LINK, value, expires_at)
        return GateLink(url, to_datetime(expires_at), self.recipient, self.id)
