"""Links to gates: what the token of a link says, and its URL."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.clock import Duration, to_datetime, to_micros
from holdfast.model.names import check_name
from holdfast.model.signed_tokens import LinkSettings

GATE_LINK = "gate link"
"""The purpose of the tokens."""
GATE_LINK_PATH = "/links/gate"
DEFAULT_EXPIRY = timedelta(days=3)
MAX_EXPIRY = timedelta(days=366)
MAX_RECIPIENT_CHARS = 150


class GateLinkToken(msgspec.Struct, frozen=True, array_like=True):
    """The content of a link's token."""

    gate: bytes
    """The id of the gate's run."""
    opening: int
    """The gate's number of records when the link was created: it grows with each decision, end and retry."""
    recipient: str | None


class GateLink(msgspec.Struct, frozen=True):
    """A link with which a person without a login decides a gate."""

    url: str
    expires_at: datetime
    recipient: str | None


class LinkRequest(msgspec.Struct, frozen=True):
    """How long a link is valid, in microseconds, and for whom it is."""

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
        return cls(lifetime, recipient)

    def link(self, links: LinkSettings, gate: str, opening: int, now: int) -> GateLink:
        """Return the link to a gate."""
        expires_at = now + self.lifetime
        value = GateLinkToken(UUID(gate).bytes, opening, self.recipient)
        return GateLink(
            links.url(GATE_LINK_PATH, GATE_LINK, value, expires_at), to_datetime(expires_at), self.recipient
        )
