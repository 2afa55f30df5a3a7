"""Tokens for the web side, as hashes. What a token looks like, and how one is checked, is `control/tokens.py`'s."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.store.part import Part


class TokenRow(NamedTuple):
    """A token as it is kept."""

    id: str
    hash: str
    name: str
    may: str
    tenant: str | None
    created_at: int
    revoked_at: int | None


class Tokens(Part):
    """Make, find, revoke."""

    def add(self, id: str, kept: str, name: str, may: str, tenant: str | None) -> None:
        """Keep a new token's hash."""
        self._one("client", "add_token", id=id, hash=kept, name=name, may=may, tenant=tenant)

    def all(self) -> list[TokenRow]:
        """Every token, revoked ones too, the oldest first."""
        return [TokenRow._make(row) for row in self._one("read", "list_tokens")]

    def find(self, id: str) -> TokenRow | None:
        """A token that may be used."""
        rows = self._one("read", "find_token", id=id)
        return TokenRow._make(rows[0]) if rows else None

    def any(self) -> bool:
        """Whether there is one that may be used."""
        return bool(self._one("read", "any_token"))

    def revoke(self, id: str) -> bool:
        """Let nobody use it any more; False when there is none such that could be used."""
        return bool(self._one("client", "revoke_token", id=id))
