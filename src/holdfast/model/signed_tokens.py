"""Signed tokens, and the settings of signed links: the secrets that sign them and the public URL they begin with.

A token carries a small typed value that only a holder of a secret can have written. It is the base64url text of

    version (1 byte) | key id (4) | expiry, seconds since 1970 (5) | value (MessagePack) | HMAC-SHA256 (32)

Each purpose has keys of its own, derived from the secrets, so that a token for one purpose is none for another.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
import struct
from collections.abc import Sequence
from typing import Any, Generic, Literal, NamedTuple, TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.clock import MICROS_PER_SECOND

T = TypeVar("T")

MIN_SECRET_CHARS = 32
MAX_SECRETS = 16
MAX_TOKEN_CHARS = 2048
TOKEN_PARAMETER = "token"
"""The query parameter of a URL that holds a token. The web server keeps it out of access logs."""
_VERSION = 1
_KEY_ID_BYTES = 4
_EXPIRY_BYTES = 5
_HEADER_BYTES = 1 + _KEY_ID_BYTES + _EXPIRY_BYTES
_MAC_BYTES = 32
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
NO_SECRET = (
    "signed links need a secret: set $HOLDFAST_SECRET, or Holdfast(secret=…), to the output of `openssl rand -hex 32`,"
    " the same for all programs"
)
NO_PUBLIC_URL = (
    "signed links need the address of the dashboard: set $HOLDFAST_PUBLIC_URL, or Holdfast(public_url=…), such as"
    " https://ops.example.org"
)

Refusal = Literal["malformed", "unknown key", "forged", "expired", "used", "revoked"]
"""Why a token is refused. `used`: it was valid, but what it is for has been done or has ended."""


class TokenRefused(Exception):
    """A token isn't valid for a purpose. `reason` is for the log, not for the sender of the token."""

    def __init__(self, reason: Refusal) -> None:
        super().__init__(f"token refused: {reason}")
        self.reason = reason


class SignedValue(NamedTuple, Generic[T]):
    """The content of a valid token."""

    value: T
    expires_at: int
    """Microseconds."""


class Signer:
    """Signs and verifies tokens. The first secret signs; all of them verify."""

    __slots__ = ("_secrets",)

    def __init__(self, secrets: Sequence[str]) -> None:
        if not secrets or len(secrets) > MAX_SECRETS:
            raise ConfigError(f"secret must contain 1 to {MAX_SECRETS} secrets, not {len(secrets)}")
        if any(not isinstance(secret, str) or len(secret) < MIN_SECRET_CHARS for secret in secrets):
            raise ConfigError(
                f"each secret must be a text of at least {MIN_SECRET_CHARS} characters: generate one with"
                " `openssl rand -hex 32` (in $HOLDFAST_SECRET, a comma separates several)"
            )
        self._secrets = {_key_id(secret): secret.encode() for secret in secrets}

    def sign(self, purpose: str, value: Any, expires_at: int) -> str:
        """Return a token with a value that MessagePack can encode, valid for one purpose until `expires_at`."""
        id, secret = next(iter(self._secrets.items()))
        expiry = -(-expires_at // MICROS_PER_SECOND)
        header = struct.pack(f">B{_KEY_ID_BYTES}s", _VERSION, id) + expiry.to_bytes(_EXPIRY_BYTES, "big")
        content = header + msgspec.msgpack.encode(value)
        return _to_text(content + _mac(secret, purpose, content))

    def verify(self, purpose: str, token: str, kind: type[T], now: int) -> SignedValue[T]:
        """Return the value of a token that one of the secrets signed for this purpose; raise TokenRefused otherwise."""
        data = _from_text(token)
        content, mac = data[:-_MAC_BYTES], data[-_MAC_BYTES:]
        if len(content) <= _HEADER_BYTES or content[0] != _VERSION:
            raise TokenRefused("malformed")
        secret = self._secrets.get(content[1 : 1 + _KEY_ID_BYTES])
        if secret is None:
            raise TokenRefused("unknown key")
        if not hmac.compare_digest(mac, _mac(secret, purpose, content)):
            raise TokenRefused("forged")
        expires_at = int.from_bytes(content[1 + _KEY_ID_BYTES : _HEADER_BYTES], "big") * MICROS_PER_SECOND
        if now >= expires_at:
            raise TokenRefused("expired")
        try:
            return SignedValue(msgspec.msgpack.decode(content[_HEADER_BYTES:], type=kind), expires_at)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise TokenRefused("malformed") from None

    def __repr__(self) -> str:
        return f"<Signer, {len(self._secrets)} secrets>"


class LinkSettings:
    """The settings `secret` and `public_url` of an app."""

    __slots__ = ("_signer", "public_url")

    def __init__(self, secret: str | Sequence[str] | None = None, public_url: str | None = None) -> None:
        if secret is None:
            secrets = [part.strip() for part in os.environ.get("HOLDFAST_SECRET", "").split(",") if part.strip()]
        else:
            secrets = [secret] if isinstance(secret, str) else list(secret)
        self._signer = Signer(secrets) if secrets else None
        given_url = os.environ.get("HOLDFAST_PUBLIC_URL") if public_url is None else public_url
        self.public_url = _checked_url(given_url) if given_url else None
        """The address of the dashboard, without a slash at its end."""

    @property
    def host(self) -> str | None:
        """The host name of the public URL."""
        return None if self.public_url is None else urlsplit(self.public_url).hostname

    @property
    def is_complete(self) -> bool:
        """Whether links can be created: there are a secret and a public URL."""
        return self._signer is not None and self.public_url is not None

    def require(self) -> None:
        """Raise a ConfigError unless links can be created."""
        if self._signer is None:
            raise ConfigError(NO_SECRET)
        if self.public_url is None:
            raise ConfigError(NO_PUBLIC_URL)

    def url(self, path: str, purpose: str, value: Any, expires_at: int) -> str:
        """Return the public URL of a path of the dashboard, with a token for `purpose`."""
        self.require()
        assert self._signer is not None
        return f"{self.public_url}{path}?{TOKEN_PARAMETER}={self._signer.sign(purpose, value, expires_at)}"

    def verify(self, purpose: str, token: str, kind: type[T], now: int) -> SignedValue[T]:
        """Return the value of a token for `purpose`; raise TokenRefused if it isn't valid at `now`, in microseconds."""
        if self._signer is None:
            raise TokenRefused("unknown key")
        return self._signer.verify(purpose, token, kind, now)

    def __repr__(self) -> str:
        return f"<LinkSettings, {self._signer}, {self.public_url}>"


def _key_id(secret: str) -> bytes:
    return hmac.digest(secret.encode(), b"holdfast key id", hashlib.sha256)[:_KEY_ID_BYTES]


def _mac(secret: bytes, purpose: str, content: bytes) -> bytes:
    key = hmac.digest(secret, b"holdfast signed token 1:" + purpose.encode(), hashlib.sha256)
    return hmac.digest(key, content, hashlib.sha256)


def _to_text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _from_text(token: str) -> bytes:
    """Decode a token. Only the text that `sign` returns is accepted, not another one with the same bytes."""
    if len(token) > MAX_TOKEN_CHARS or not _TOKEN.fullmatch(token):
        raise TokenRefused("malformed")
    try:
        data = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    except binascii.Error:
        raise TokenRefused("malformed") from None
    if _to_text(data) != token:
        raise TokenRefused("malformed")
    return data


def _checked_url(url: str) -> str:
    """Return a public URL without a slash at its end. The error doesn't repeat it: it may contain a password."""
    parts = _split_url(url)
    if parts is None or parts.username is not None or parts.query or parts.fragment:
        raise ConfigError(
            "public_url, or $HOLDFAST_PUBLIC_URL, must be the address of the dashboard, such as https://ops.example.org"
            " or https://example.org/holdfast: http or https, a host name, and no user name, query or fragment"
        )
    return url.rstrip("/?#")


def _split_url(url: object) -> SplitResult | None:
    if not isinstance(url, str) or not url.isascii() or not url.isprintable() or " " in url:
        return None
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and (parts.port is None or parts.port > 0)
    except ValueError:
        return None
    host = parts.netloc.rpartition("@")[2]
    name = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host.partition(":")[0]
    return parts if valid and _HOST.fullmatch(name) else None
