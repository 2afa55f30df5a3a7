"""Signed URLs of streams: for programs without a token, such as browsers, and for one run each."""

from __future__ import annotations

import time
from datetime import timedelta
from uuid import UUID

from holdfast.errors import ConfigError
from holdfast.model.clock import MICROS_PER_SECOND, Clock, Duration, to_micros
from holdfast.model.signed_tokens import LinkSettings, TokenRefused

STREAM_URL = "run stream"
"""The purpose of the tokens. Their value is the id of the run."""
DEFAULT_EXPIRY = timedelta(hours=1)
MAX_EXPIRY = timedelta(days=366)


def stream_url(links: LinkSettings, run: UUID, expires: Duration, clock: Clock) -> str:
    """Return the signed URL of a run's stream, valid for this long by the clock of this machine."""
    lifetime = to_micros(expires, "expires")
    if not 0 < lifetime <= to_micros(MAX_EXPIRY, "expires"):
        raise ConfigError(f"expires must be positive and at most {MAX_EXPIRY.days} days")
    return links.url(f"/api/v1/runs/{run}/stream", STREAM_URL, run.bytes, now_of(clock) + lifetime)


def check_stream_token(links: LinkSettings, token: str, run: UUID, clock: Clock) -> float:
    """Return for how many seconds a token is still valid for the stream of a run; raise TokenRefused if it isn't."""
    now = now_of(clock)
    signed = links.verify(STREAM_URL, token, bytes, now)
    if signed.value != run.bytes:
        raise TokenRefused("forged")
    return (signed.expires_at - now) / MICROS_PER_SECOND


def now_of(clock: Clock) -> int:
    """Return the time in microseconds: that of this machine, or of the virtual clock of a test."""
    virtual = clock()
    return round(time.time() * MICROS_PER_SECOND) if virtual is None else virtual
