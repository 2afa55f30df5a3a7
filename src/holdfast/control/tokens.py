"""Access tokens for the dashboard and the API. A token is shown once; only a hash of a hash of it is stored.

A token is `hf_<id>_<secret>`: the id finds the row, the secret has 256 random bits. The first hash is the *credential*,
which a browser keeps in its login cookie; the database stores the hash of the credential. Neither the cookie nor the
database reveals the token.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.clock import to_datetime, to_datetime_or_none
from holdfast.model.names import check_name
from holdfast.store import Store
from holdfast.store.admin import TokenRow

Permission: TypeAlias = Literal["read", "operate"]

_TOKEN = re.compile(r"hf_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
_ID = re.compile(r"[0-9a-f]{12}")


class TokenInfo(msgspec.Struct, frozen=True):
    """A token without its secret."""

    id: str
    name: str
    may: Permission
    tenant: str | None
    """The tenant whose runs it is limited to; None: all tenants."""
    created_at: datetime
    revoked_at: datetime | None


class NewToken(NamedTuple):
    """A new token: the only time it can be read."""

    info: TokenInfo
    token: str


class TokenControl:
    """Create, list, revoke and check access tokens."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(self, may: Permission, tenant: str | None = None, name: str | None = None) -> NewToken:
        """Create a token for reading, or for operating, which includes reading; for one tenant or all."""
        if may not in ("read", "operate"):
            raise ConfigError(f"the permission of a token is read or operate, not {may!r}")
        if tenant is not None:
            check_name(tenant, "tenant")
        id = secrets.token_hex(6)
        token = f"hf_{id}_{secrets.token_urlsafe(32)}"
        self._store.tokens.add(
            id,
            hash_credential(to_credential(token)),
            check_name(name or f"token {id}", "the token's name"),
            may,
            tenant,
        )
        row = self._store.tokens.find(id)
        assert row is not None
        return NewToken(_info(row), token)

    def list(self) -> Sequence[TokenInfo]:
        """List all tokens, including revoked ones, oldest first."""
        return [_info(row) for row in self._store.tokens.list_all()]

    def revoke(self, id: str) -> bool:
        """Revoke a token; False if it had already been revoked."""
        if self._store.tokens.revoke(id):
            return True
        if any(row.id == id for row in self._store.tokens.list_all()):
            return False
        raise ConfigError(f"token {id[:40]!r} does not exist; `holdfast token list` lists the ids")

    def exist(self) -> bool:
        """Return whether any valid token exists."""
        return self._store.tokens.has_any()

    def ever_existed(self) -> bool:
        """Return whether any token was ever created, valid or not."""
        return self._store.tokens.has_any_row()

    def check(self, id: str, credential: str) -> TokenInfo | None:
        """Return the token that the credential belongs to, if it is valid."""
        if not _ID.fullmatch(id):
            return None
        row = self._store.tokens.find(id)
        matches = hmac.compare_digest(hash_credential(credential), "" if row is None else row.hash)
        return _info(row) if matches and row is not None else None


def parse_token_id(token: str) -> str | None:
    """Return the id within a token; None for any other text."""
    found = _TOKEN.fullmatch(token)
    return found[1] if found else None


def to_credential(token: str) -> str:
    """Return what a browser sends instead of the token."""
    return hashlib.sha256(b"holdfast pass\0" + token.encode("utf-8", "surrogateescape")).hexdigest()


def hash_credential(credential: str) -> str:
    """Return what the database stores of a credential."""
    return hashlib.sha256(b"holdfast kept\0" + credential.encode("utf-8", "surrogateescape")).hexdigest()


def _info(row: TokenRow) -> TokenInfo:
    return TokenInfo(
        id=row.id,
        name=row.name,
        may=row.may,  # type: ignore[arg-type]
        tenant=row.tenant,
        created_at=to_datetime(row.created_at),
        revoked_at=to_datetime_or_none(row.revoked_at),
    )
