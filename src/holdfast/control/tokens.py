"""Tokens for the web side: made, listed, revoked, checked. A token is shown once; a hash of a hash of it is kept.

`hf_<id>_<secret>`: the id finds the row, the secret has 256 bits of chance. Whoever logs in with a token in a browser
is known by a cookie from then on, which has the first hash, the pass: neither the tables nor the cookie give the token
away.
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
    """A token as it may be shown: without its secret."""

    id: str
    name: str
    may: Permission
    tenant: str | None
    """Whose runs alone it is for; None: all."""
    created_at: datetime
    revoked_at: datetime | None


class NewToken(NamedTuple):
    """A token that was made just now: the only time that it can be read."""

    info: TokenInfo
    token: str


class TokenControl:
    """Who may come in, and what they may do."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(self, may: Permission, tenant: str | None = None, name: str | None = None) -> NewToken:
        """Make a token for reading, or for operating, which includes that; for one tenant's runs, or all."""
        if may not in ("read", "operate"):
            raise ConfigError(f"a token is for read or operate, not {may!r}")
        if tenant is not None:
            check_name(tenant, "tenant")
        id = secrets.token_hex(6)
        token = f"hf_{id}_{secrets.token_urlsafe(32)}"
        self._store.tokens.add(
            id, kept_hash(pass_of(token)), check_name(name or f"token {id}", "the token's name"), may, tenant
        )
        row = self._store.tokens.find(id)
        assert row is not None
        return NewToken(_info(row), token)

    def list(self) -> Sequence[TokenInfo]:
        """Every token, revoked ones too, the oldest first."""
        return [_info(row) for row in self._store.tokens.list_all()]

    def revoke(self, id: str) -> bool:
        """Let nobody use a token any more; False when it had been revoked before."""
        if self._store.tokens.revoke(id):
            return True
        if any(row.id == id for row in self._store.tokens.list_all()):
            return False
        raise ConfigError(f"there is no token {id[:40]!r}; `holdfast token list` shows their ids")

    def exist(self) -> bool:
        """Whether there is a token that may be used."""
        return self._store.tokens.has_any()

    def check(self, id: str, given: str) -> TokenInfo | None:
        """The token whose pass was given, if there is such a one and it may be used."""
        if not _ID.fullmatch(id):
            return None
        row = self._store.tokens.find(id)
        fits = hmac.compare_digest(kept_hash(given), "" if row is None else row.hash)
        return _info(row) if fits and row is not None else None


def id_of(token: str) -> str | None:
    """The id in a token of ours; None for any other text."""
    found = _TOKEN.fullmatch(token)
    return found[1] if found else None


def pass_of(token: str) -> str:
    """What a browser shows instead of the token."""
    return hashlib.sha256(b"holdfast pass\0" + token.encode("utf-8", "surrogateescape")).hexdigest()


def kept_hash(given: str) -> str:
    """What is kept of a pass."""
    return hashlib.sha256(b"holdfast kept\0" + given.encode("utf-8", "surrogateescape")).hexdigest()


def _info(row: TokenRow) -> TokenInfo:
    return TokenInfo(
        id=row.id,
        name=row.name,
        may=row.may,  # type: ignore[arg-type]
        tenant=row.tenant,
        created_at=to_datetime(row.created_at),
        revoked_at=to_datetime_or_none(row.revoked_at),
    )
