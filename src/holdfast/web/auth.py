"""Authentication: from a bearer token or login cookie to a `Principal`, which may read or operate, on all runs or on
one tenant's.

The tenant and the permission come from the credential; nothing in a request widens them. A dashboard that was started
unlocked is open, so that every local user may operate, only while no token was ever created and only for requests that
reach it directly: not through a proxy, a mount or another address.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from starlette.requests import Request

from holdfast.app import Holdfast
from holdfast.control import Control
from holdfast.control.tokens import Permission, hash_credential, parse_token_id, to_credential
from holdfast.errors import RunNotFound
from holdfast.model.names import actor_or_user
from holdfast.model.run import RunInfo
from holdfast.web.middleware import DIRECT
from holdfast.web.responses import RequestError

COOKIE = "holdfast_login"
ENV_TOKEN_ID = "env"  # stands for the id of $HOLDFAST_TOKEN, which isn't in the database
LOGIN_DURATION_S = 12 * 3600


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated client. `by` is its name in the history of runs."""

    by: str
    permission: Permission
    tenant: str | None
    method: Literal["bearer", "cookie", "open"]
    csrf_token: str

    @property
    def can_operate(self) -> bool:
        return self.permission == "operate"

    def can_see(self, run: RunInfo[Any]) -> bool:
        return self.tenant is None or run.tenant == self.tenant

    def run(self, control: Control, id: UUID) -> RunInfo[Any]:
        """Read a run; another tenant's run raises the same error as one that doesn't exist."""
        info = control.runs.info(id)
        if not self.can_see(info):
            raise RunNotFound.of(id)
        return info

    def find(self, control: Control, prefix: str) -> UUID:
        """Find a visible run by the beginning of its id."""
        try:
            return self.run(control, control.runs.find(prefix)).id
        except RunNotFound as error:
            if self.tenant is None:
                raise
            # The original message may name other tenants' runs.
            raise RunNotFound(f"tenant {self.tenant} has no run {prefix[:60]!r}") from error


class Authenticator:
    """Turns the credentials of a request into a `Principal`."""

    def __init__(self, control: Control, token: str | None, *, unlocked: bool) -> None:
        self._control = control
        self._env_hash = None if token is None else hash_credential(to_credential(token))
        self._unlocked = unlocked and token is None

    def authenticate(self, request: Request) -> Principal:
        """Identify the client or raise a 401. Reads the database."""
        bearer = _bearer_token(request)
        if bearer is not None:
            found = self._principal(parse_token_id(bearer), to_credential(bearer), "bearer")
        elif (cookie := request.cookies.get(COOKIE)) is not None:
            id, _, credential = cookie.partition(".")
            found = self._principal(id, credential, "cookie")
        else:
            found = None
        if found is None and bearer is None and self._is_open(request):
            found = Principal(actor_or_user(None), "operate", None, "open", _csrf_token(self._control.identity))
        if found is None:
            raise RequestError(
                401,
                "send a token as `Authorization: Bearer …`, or log in; create one with `holdfast token create`",
                "no_token",
                {"www-authenticate": 'Bearer realm="holdfast"'},
            )
        return found

    def _is_open(self, request: Request) -> bool:
        """Return whether no login is needed: started unlocked, reached directly, and no token was ever created."""
        if not self._unlocked or not request.scope.get(DIRECT):
            return False
        if self._control.tokens.ever_existed():
            self._unlocked = False  # for good: revoking the last token doesn't open it again
        return self._unlocked

    def login_cookie(self, token: str) -> str | None:
        """Return the cookie value for a valid token, otherwise None."""
        credential = to_credential(token)
        id = parse_token_id(token) or ENV_TOKEN_ID
        return f"{id}.{credential}" if self._principal(id, credential, "cookie") else None

    def _principal(self, id: str | None, credential: str, method: Literal["bearer", "cookie"]) -> Principal | None:
        if self._env_hash is not None and hmac.compare_digest(hash_credential(credential), self._env_hash):
            return Principal("$HOLDFAST_TOKEN", "operate", None, method, _csrf_token(credential))
        found = None if id is None else self._control.tokens.check(id, credential)
        if found is None:
            return None
        return Principal(found.name, found.may, found.tenant, method, _csrf_token(credential))


@dataclass(frozen=True, slots=True)
class SiteContext:
    """Everything request handlers share."""

    app: Holdfast
    control: Control
    authenticator: Authenticator


def authorize(principal: Principal, permission: Permission, *, all_tenants: bool) -> None:
    """Raise a 403 unless the principal has the permission; `all_tenants` excludes tokens of one tenant."""
    if permission == "operate" and not principal.can_operate:
        raise RequestError(403, "this token is read-only", "read_only")
    if all_tenants and principal.tenant is not None:
        raise RequestError(403, f"this token is limited to tenant {principal.tenant}", "one_tenant")


def same_secret(given: str, expected: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())


def _bearer_token(request: Request) -> str | None:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def _csrf_token(secret: str) -> str:
    return hmac.new(secret.encode("utf-8", "surrogateescape"), b"holdfast forms", hashlib.sha256).hexdigest()
