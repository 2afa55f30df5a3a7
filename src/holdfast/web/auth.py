"""Who asks: from a bearer token or the cookie of a login to a `Visitor`, who may read or operate, all or one tenant's.

Nothing that a request says about itself widens that: the tenant is the credential's. Where nobody has made a token and
the dashboard listens to its own machine only, it is open, and everybody there may operate.
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
from holdfast.control.tokens import Permission, id_of, kept_hash, pass_of
from holdfast.errors import RunNotFound
from holdfast.model.names import actor_or_user
from holdfast.model.run import RunInfo
from holdfast.web.responses import RequestError

COOKIE = "holdfast_login"
MASTER = "env"
"""Stands for the id of the token that the process was started with."""
LOGIN_SECONDS = 12 * 3600


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who may come in. `by` is what history says of them."""

    by: str
    may: Permission
    tenant: str | None
    came: Literal["bearer", "cookie", "open"]
    csrf_token: str
    """What forms must bring along to be obeyed: nobody else's page can know it."""

    @property
    def can_operate(self) -> bool:
        return self.may == "operate"

    def can_see(self, run: RunInfo[Any]) -> bool:
        return self.tenant is None or run.tenant == self.tenant

    def run(self, control: Control, id: UUID) -> RunInfo[Any]:
        """A run that this visitor may see; for those of other tenants the answer is the same as for none."""
        info = control.runs.info(id)
        if not self.can_see(info):
            raise RunNotFound.of(id)
        return info

    def find(self, control: Control, given: str) -> UUID:
        """The run that this visitor may see whose id begins so."""
        try:
            return self.run(control, control.runs.find(given)).id
        except RunNotFound as error:
            if self.tenant is None:
                raise
            raise RunNotFound(f"you have no run {given[:60]!r}") from error  # the error may name the runs of others


class Authenticator:
    """Recognises who asks."""

    def __init__(self, control: Control, token: str | None, *, unlocked: bool) -> None:
        self._control = control
        self._master = None if token is None else kept_hash(pass_of(token))
        self._unlocked = unlocked

    def of(self, request: Request) -> Principal:
        """Who asks; a refusal with status 401 when it can't be told. Reads the database."""
        bearer = _bearer(request)
        if bearer is not None:
            found = self._known(id_of(bearer), pass_of(bearer), "bearer")
        elif (cookie := request.cookies.get(COOKIE)) is not None:
            id, _, given = cookie.partition(".")
            found = self._known(id, given, "cookie")
        else:
            found = None
        if found is None and bearer is None and self.is_open():
            found = Principal(actor_or_user(None), "operate", None, "open", _form_key(self._control.identity))
        if found is None:
            raise RequestError(
                401,
                "give a token as `Authorization: Bearer …`, or log in; `holdfast token create` makes one",
                "no_token",
                {"www-authenticate": 'Bearer realm="holdfast"'},
            )
        return found

    def is_open(self) -> bool:
        """Whether everybody may come in: it was started so, and nobody has made a token since."""
        return self._unlocked and self._master is None and not self._control.tokens.exist()

    def cookie_for(self, token: str) -> str | None:
        """What a browser is to show from now on; None when the token isn't a good one."""
        given = pass_of(token)
        id = id_of(token) or MASTER
        return f"{id}.{given}" if self._known(id, given, "cookie") else None

    def _known(self, id: str | None, given: str, came: Literal["bearer", "cookie"]) -> Principal | None:
        if self._master is not None and hmac.compare_digest(kept_hash(given), self._master):
            return Principal("$HOLDFAST_TOKEN", "operate", None, came, _form_key(given))
        found = None if id is None else self._control.tokens.check(id, given)
        if found is None:
            return None
        return Principal(found.name, found.may, found.tenant, came, _form_key(given))


def _bearer(request: Request) -> str | None:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def _form_key(secret: str) -> str:
    return hmac.new(secret.encode("utf-8", "surrogateescape"), b"holdfast forms", hashlib.sha256).hexdigest()


def same_secret(given: str, ours: str) -> bool:
    """Whether two secrets are the same, in a time that tells nothing about them."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), ours.encode())


@dataclass(frozen=True, slots=True)
class SiteContext:
    """One app's database, seen from the web."""

    app: Holdfast
    control: Control
    authenticator: Authenticator
