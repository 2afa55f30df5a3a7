"""Access tokens for the dashboard and the API, and the logins of browsers.

A token is `hf_<id>_<secret>`: the id finds the row, the secret has 256 random bits. It is shown once; the database
stores a hash of it. A browser logs in with a token and gets another secret of 256 random bits as its cookie. The
database stores the hash of that secret, too, and ends the login by deleting the row.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec

from holdfast.control.audit import audited
from holdfast.errors import ConfigError, PayloadError, StoreError
from holdfast.model.access import (
    ROLE_SHORTHANDS,
    AccessScope,
    Permission,
    Role,
    check_patterns,
    check_roles,
    permissions_of,
)
from holdfast.model.clock import MICROS_PER_SECOND, Duration, to_datetime, to_datetime_or_none, to_micros
from holdfast.model.codec import decode
from holdfast.model.names import check_name
from holdfast.store import Store
from holdfast.store.access import TokenRow
from holdfast.task.options import MAX_PRIORITY

TOKEN_LIFETIME = timedelta(days=90)
LOGIN_IDLE_S = 30 * 60
LOGIN_LIFETIME_S = 12 * 3600

_TOKEN = re.compile(r"hf_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
_ID = re.compile(r"[0-9a-f]{12}")
_HASH_PREFIX = "2:"
"""Begins the hashes of tokens with roles. Older releases, which would ignore roles and scope, don't accept them."""


class TokenInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A token without its secret."""

    id: str
    name: str
    roles: tuple[Role, ...]
    tenant: str | None
    """The tenant whose runs it is limited to; None: all tenants."""
    tasks: tuple[str, ...] | None
    """The tasks it is limited to; None: all."""
    queues: tuple[str, ...] | None
    """The queues it is limited to; None: all."""
    max_priority: int | None
    """The highest priority of runs that it enqueues; None: that of the task."""
    created_at: datetime
    expires_at: datetime | None
    used_at: datetime | None
    """When it was last used, within a minute."""
    revoked_at: datetime | None
    logins: int = 0
    """How many browsers are logged in with it; only in lists."""

    @property
    def scope(self) -> AccessScope:
        return AccessScope(tenant=self.tenant, tasks=self.tasks, queues=self.queues, max_priority=self.max_priority)

    @property
    def permissions(self) -> frozenset[Permission]:
        return permissions_of(self.roles)

    @property
    def is_valid(self) -> bool:
        """Whether it is neither revoked nor expired, by the clock of this machine."""
        return self.revoked_at is None and (self.expires_at is None or self.expires_at > datetime.now(UTC))


class NewToken(NamedTuple):
    """A new token: the only time it can be read."""

    info: TokenInfo
    token: str


class TokenControl:
    """Create, list, revoke and check access tokens."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @audited("create token", "name")
    def create(
        self,
        roles: str | Iterable[str],
        tenant: str | None = None,
        name: str | None = None,
        *,
        tasks: Iterable[str] | None = None,
        queues: Iterable[str] | None = None,
        max_priority: int | None = None,
        expires: Duration | None = TOKEN_LIFETIME,
    ) -> NewToken:
        """Create a token with one or more roles: viewer, approver, operator, admin.

        It can be limited to a tenant, to tasks and to queues; a name that ends with `*` stands for all names that begin
        with the rest. `max_priority` allows it to enqueue above the priority of a task. `expires` is its lifetime;
        None: it doesn't expire.
        """
        granted = check_roles(roles)
        scope = AccessScope(
            tenant=None if tenant is None else check_name(tenant, "tenant"),
            tasks=check_patterns(tasks, "tasks"),
            queues=check_patterns(queues, "queues"),
            max_priority=_check_priority(max_priority),
        )
        if "admin" in granted and scope != AccessScope():
            raise ConfigError("an admin manages everything: omit the tenant, tasks, queues and priority, or the role")
        id = secrets.token_hex(6)
        token = f"hf_{id}_{secrets.token_urlsafe(32)}"
        row = TokenRow(
            id=id,
            hash=_HASH_PREFIX + hash_credential(to_credential(token)),
            name=check_name(name or f"token {id}", "the token's name"),
            may="operate" if "operate" in permissions_of(granted) else "read",
            tenant=scope.tenant,
            created_at=0,
            revoked_at=None,
            roles=_encode(granted),
            tasks=_encode(scope.tasks),
            queues=_encode(scope.queues),
            max_priority=scope.max_priority,
            expires_at=None,
            used_at=None,
        )
        self._store.tokens.add(row, None if expires is None else _lifetime(expires))
        found = self._store.tokens.find(id)
        assert found is not None
        return NewToken(_info(found.row), token)

    def list(self) -> Sequence[TokenInfo]:
        """List all tokens, including revoked and expired ones, oldest first."""
        logins = self._store.logins.count_by_token(LOGIN_IDLE_S * MICROS_PER_SECOND)
        return [_info(row, logins.get(row.id, 0)) for row in self._store.tokens.list_all()]

    @audited("revoke token", "id")
    def revoke(self, id: str) -> bool:
        """Revoke a token and end its logins; False if it had already been revoked."""
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

    def check(self, token: str) -> TokenInfo | None:
        """Return what is stored of a token, if it is valid; record that it is in use."""
        id = parse_token_id(token)
        found = None if id is None else self._store.tokens.find(id)
        expected = "" if found is None else found.row.hash.removeprefix(_HASH_PREFIX)
        if not hmac.compare_digest(hash_credential(to_credential(token)), expected) or found is None:
            return None
        if found.is_stale:
            with suppress(StoreError):  # a database that can only be read
                self._store.tokens.touch(found.row.id)
        return _info(found.row)

    def is_valid(self, id: str) -> bool:
        """Return whether a token that was checked before is still valid."""
        return bool(_ID.fullmatch(id)) and self._store.tokens.find(id) is not None


class LoginControl:
    """Logins of browsers: created with a token, valid until they expire, are unused for long, or are ended."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(self, token: str) -> str:
        """Create a login of a token, given by its id, and return the secret for the cookie."""
        secret = secrets.token_urlsafe(32)
        self._store.logins.add(_login_id(secret), token, LOGIN_LIFETIME_S * MICROS_PER_SECOND)
        return secret

    def find(self, secret: str, *, in_use: bool) -> tuple[str, TokenInfo | None] | None:
        """Return the token of a valid login: its id, and what is stored of it. `in_use`: the user is active."""
        id = _login_id(secret)
        found = self._store.logins.find(id, LOGIN_IDLE_S * MICROS_PER_SECOND)
        if found is None:
            return None
        if found.is_stale and in_use:
            with suppress(StoreError):  # a database that can only be read
                self._store.logins.touch(id)
                if found.token is not None:
                    self._store.tokens.touch(found.token_id)
        return found.token_id, None if found.token is None else _info(found.token)

    def end(self, secret: str) -> bool:
        """End a login; False if it had already ended."""
        return self._store.logins.end(_login_id(secret))


def parse_token_id(token: str) -> str | None:
    """Return the id within a token; None for any other text."""
    found = _TOKEN.fullmatch(token)
    return found[1] if found else None


def to_credential(token: str) -> str:
    """Return the first of the two hashes of a token."""
    return hashlib.sha256(b"holdfast pass\0" + token.encode("utf-8", "surrogateescape")).hexdigest()


def hash_credential(credential: str) -> str:
    """Return what the database stores of a credential."""
    return hashlib.sha256(b"holdfast kept\0" + credential.encode("utf-8", "surrogateescape")).hexdigest()


def _login_id(secret: str) -> str:
    return hashlib.sha256(b"holdfast login\0" + secret.encode("utf-8", "surrogateescape")).hexdigest()


def _check_priority(value: int | None) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_PRIORITY):
        raise ConfigError(f"max_priority must be an int within ±{MAX_PRIORITY:,}, not {value!r}")
    return value


def _lifetime(expires: Duration) -> int:
    micros = to_micros(expires, "expires")
    if micros < MICROS_PER_SECOND:
        raise ConfigError("expires must be at least one second; None means that the token doesn't expire")
    return micros


def _encode(names: Sequence[str] | None) -> str | None:
    return None if names is None else msgspec.json.encode(names).decode()


def _info(row: TokenRow, logins: int = 0) -> TokenInfo:
    return TokenInfo(
        id=row.id,
        name=row.name,
        roles=_roles(row),
        tenant=row.tenant,
        tasks=_names(row.tasks),
        queues=_names(row.queues),
        max_priority=row.max_priority,
        created_at=to_datetime(row.created_at),
        expires_at=to_datetime_or_none(row.expires_at),
        used_at=to_datetime_or_none(row.used_at),
        revoked_at=to_datetime_or_none(row.revoked_at),
        logins=logins,
    )


def _roles(row: TokenRow) -> tuple[Role, ...]:
    """Return the roles of a token. One of release 0.1 keeps what it could do, without what now needs a permission."""
    if row.roles is None:
        return ("admin",) if row.may == "operate" and row.tenant is None else ROLE_SHORTHANDS.get(row.may, ("viewer",))
    try:
        return check_roles(decode(row.roles, tuple[str, ...]))
    except (PayloadError, ConfigError):  # changed by hand
        return ()


def _names(text: str | None) -> tuple[str, ...] | None:
    try:
        return None if text is None else tuple(decode(text, tuple[str, ...]))
    except PayloadError:  # changed by hand: it covers nothing
        return ()
