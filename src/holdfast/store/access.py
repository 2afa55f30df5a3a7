"""Access tokens and the logins of browsers, both as hashes. `control` creates and checks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from holdfast.store.module import StoreModule, json_rows
from holdfast.store.typed_rows import RowReader

MAX_LOGINS_PER_TOKEN = 50
"""How many logins of one token are valid at the same time; a new one ends the oldest."""


class TokenRow(NamedTuple):
    """A stored access token. `roles`, `tasks` and `queues` are JSON."""

    id: str
    hash: str
    name: str
    may: str
    tenant: str | None
    created_at: int
    revoked_at: int | None
    roles: str | None
    tasks: str | None
    queues: str | None
    max_priority: int | None
    expires_at: int | None
    used_at: int | None


_TOKEN_ROWS = RowReader(TokenRow)


class ValidToken(NamedTuple):
    """A token that is valid now. `is_stale`: its last use should be recorded."""

    row: TokenRow
    is_stale: bool


class ValidLogin(NamedTuple):
    """A login that is valid now. `token`: None for $HOLDFAST_TOKEN. `is_stale`: its last request should be recorded."""

    token_id: str
    is_stale: bool
    token: TokenRow | None


class TokenStore(StoreModule):
    """Access tokens. They are never deleted, so that history entries can still be attributed."""

    def add(self, token: TokenRow, expires_in: int | None) -> None:
        """Store a new token. The database clock sets its times."""
        values = token._asdict()
        del values["created_at"], values["revoked_at"], values["used_at"], values["expires_at"]
        self._execute("client", "add_token", **values, expires_in=expires_in)

    def list_all(self) -> list[TokenRow]:
        """Return every token, including revoked and expired ones, the oldest first."""
        return [_token(row) for row in self._execute("read", "list_tokens")]

    def find(self, id: str) -> ValidToken | None:
        """Return a token that is neither revoked nor expired."""
        rows = self._execute("read", "find_token", id=id)
        return ValidToken(_token(rows[0][:-1]), bool(rows[0][-1])) if rows else None

    def has_any(self) -> bool:
        """Return whether there is a token that is neither revoked nor expired."""
        return bool(self._execute("read", "has_token"))

    def has_any_row(self) -> bool:
        """Return whether there is a token, valid or not. Tokens are never deleted."""
        return bool(self._execute("read", "has_token_row"))

    def touch(self, id: str) -> None:
        """Record that a token is in use."""
        self._execute("client", "touch_token", id=id)

    def revoke(self, id: str) -> bool:
        """Revoke a token; False if there is none to revoke."""
        return bool(self._execute("client", "revoke_token", id=id))


class LoginStore(StoreModule):
    """Logins of browsers. A login is valid while it is used, until it expires, and while its token is valid."""

    def add(self, id: str, token: str, lifetime: int) -> None:
        """Store a new login. End the oldest of the token and delete some expired ones. `lifetime`: microseconds."""
        self._execute("client", "add_login", id=id, token=token, lifetime=lifetime)
        extra = self._execute("client", "pick_extra_logins", token=token, limit=MAX_LOGINS_PER_TOKEN)
        if extra:
            self._execute("client", "delete_logins", rows=json_rows({"id": id} for (id,) in extra))

    def find(self, id: str, idle: int) -> ValidLogin | None:
        """Return a valid login; `idle` is how long it may have been unused."""
        rows = self._execute("read", "find_login", id=id, idle=idle)
        if not rows:
            return None
        token_id, is_stale, *token = rows[0]
        return ValidLogin(token_id, bool(is_stale), None if token[0] is None else _token(token))

    def touch(self, id: str) -> None:
        """Record that a login is in use."""
        self._execute("client", "touch_login", id=id)

    def end(self, id: str) -> bool:
        """End a login; False if there is none."""
        return bool(self._execute("client", "delete_logins", rows=json_rows([{"id": id}])))

    def count_by_token(self, idle: int) -> dict[str, int]:
        """Count the valid logins of each token."""
        return {token: int(count) for token, count in self._execute("read", "count_logins", idle=idle)}


def _token(row: Sequence[Any]) -> TokenRow:
    """Read a token. A corrupt end counts as one long ago: the database doesn't accept such a token either."""
    token = _TOKEN_ROWS.read(row)
    stored = TokenRow._make(row)
    if token.expires_at is None and stored.expires_at is not None:
        token = token._replace(expires_at=0)
    if token.revoked_at is None and stored.revoked_at is not None:
        token = token._replace(revoked_at=0)
    return token
