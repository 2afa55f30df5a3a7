"""Authentication: from a bearer token or login cookie to a `Principal`, which has roles and a scope.

Roles and scope come from the credential; nothing in a request widens them. A dashboard that was started unlocked is
open, so that every local user has all rights, only while no token was ever created and only for requests that reach it
directly: not through a proxy, a mount or another address.
"""

from __future__ import annotations

import hashlib
import hmac
from contextlib import AbstractContextManager, suppress
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

import msgspec
from starlette.requests import Request

from holdfast.app import Holdfast
from holdfast.control import Control
from holdfast.control.audit import acting
from holdfast.control.replica import ReplicaReads
from holdfast.control.tokens import TokenInfo, hash_credential, parse_token_id, to_credential
from holdfast.errors import ConfigError, RunNotFound
from holdfast.model.access import EVERYTHING, AccessScope, Permission, Role, describe_scope, permissions_of
from holdfast.model.names import actor_or_user
from holdfast.model.run import RunInfo
from holdfast.telemetry import log
from holdfast.web.clients import CLIENT, DIRECT, ClientAddresses
from holdfast.web.refusals import RefusalRecorder
from holdfast.web.request_threads import RequestThreads
from holdfast.web.responses import RequestError
from holdfast.web.sign_in import Identity, SignIn
from holdfast.web.throttle import SignInThrottle

if TYPE_CHECKING:
    from holdfast.web.oidc import OidcClient

COOKIE = "holdfast_login"
MIN_TOKEN_CHARS = 32
"""The minimum length of $HOLDFAST_TOKEN, which a person chooses."""
MAX_ANCESTORS = 50
GATE_NEEDS_APPROVER = (
    "to cancel a gate is to decide it, which needs the role approver; an operator can cancel the whole graph"
)
_NEEDED_ROLE: dict[Permission, str] = {
    "approve": "approver",
    "operate": "operator",
    "audit": "admin",
    "administer": "admin",
}

Method = Literal["bearer", "cookie", "proxy", "open"]
OIDC_LOGIN = "oidc."
"""Begins what logins with an identity provider store instead of the id of a token; the identity as JSON follows."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated client. `by` is its name in the history of runs."""

    by: str
    roles: tuple[Role, ...]
    scope: AccessScope
    method: Method
    csrf_token: str
    stream_keys: tuple[str, str]
    """What its event streams are counted by: token and client."""

    @property
    def is_ambient(self) -> bool:
        """Whether the browser sends the credential by itself, also with a request that another site has made."""
        return self.method in ("cookie", "proxy")

    @property
    def permissions(self) -> frozenset[Permission]:
        """What its roles permit. An operator of one tenant also reads the tenant's entries of the audit log."""
        found = permissions_of(self.roles)
        return found | {"audit"} if self.can_operate_tenant else found

    @property
    def can_operate_tenant(self) -> bool:
        """Whether it may act on everything of one tenant."""
        return self.tenant is not None and not self.scope.limits_lanes and "operate" in permissions_of(self.roles)

    @property
    def can_operate(self) -> bool:
        return "operate" in self.permissions

    @property
    def can_approve(self) -> bool:
        return "approve" in self.permissions

    @property
    def can_administer(self) -> bool:
        return "administer" in self.permissions

    @property
    def tenant(self) -> str | None:
        return self.scope.tenant

    @property
    def limits(self) -> str:
        """What it is limited to, for people; empty if nothing."""
        return describe_scope(self.scope)

    def may_open(self, needs: str) -> bool:
        """Return whether a section is available, which needs a permission, or a scope without a limit."""
        if needs == "all_tasks":
            return not self.scope.limits_lanes
        return not self.scope.is_limited if needs == "all_tenants" else needs in self.permissions

    def can_see(self, control: Control, run: RunInfo[Any]) -> bool:
        """Return whether a run is in scope: the run itself, or the run, graph or machine that it is a part of."""
        if not self.scope.covers_tenant(run.tenant):
            return False
        for _ in range(MAX_ANCESTORS):
            if self.scope.covers_lane(run.queue, run.task):
                return True
            if run.parent is None:
                return False
            try:
                run = control.runs.info(run.parent)
            except RunNotFound:
                return False
        return False

    def run(self, control: Control, id: UUID) -> RunInfo[Any]:
        """Read a run; one that is out of scope raises the same error as one that doesn't exist."""
        info = control.runs.summary(id)
        if not self.can_see(control, info):
            raise RunNotFound.of(id)
        return info

    def run_to_cancel(self, control: Control, id: UUID) -> RunInfo[Any]:
        """Read a run to cancel. To cancel a gate is to decide it: the nodes behind it are skipped, as if it failed."""
        info = self.run(control, id)
        if not self.can_approve and control.runs.is_gate(id):
            raise RequestError(403, GATE_NEEDS_APPROVER, "role")
        return info

    def may_fork(self, run: RunInfo[Any]) -> bool:
        """Return whether a visible run may be forked."""
        return self.can_operate and self.scope.covers_lane(run.queue, run.task)

    def run_to_fork(self, control: Control, id: UUID) -> RunInfo[Any]:
        """Read a run to fork. A fork is a new run of the task, so the task and the queue themselves must be in scope.

        A run that is visible only as a part of another one could be forked with other arguments otherwise.
        """
        info = self.run(control, id)
        if not self.may_fork(info):
            raise RequestError(403, f"this token is limited to {self.limits}", "scope")
        return info

    def run_to_change(
        self, control: Control, id: UUID, *, args: object = None, priority: int | None = None
    ) -> RunInfo[Any]:
        """Read a run to retry or change. Other arguments need what a fork needs; only an administrator may raise a
        priority."""
        info = self.run(control, id) if args is None else self.run_to_fork(control, id)
        if priority is not None and not self.can_administer and priority > info.priority:
            raise RequestError(403, "only an administrator may raise the priority of a run", "priority")
        return info

    def find(self, control: Control, prefix: str) -> UUID:
        """Find a visible run by the beginning of its id."""
        try:
            return self.run(control, control.runs.find(prefix)).id
        except RunNotFound as error:
            if not self.scope.is_limited:
                raise
            # The original message may name runs that are out of scope.
            whose = "this token" if self.tenant is None else f"tenant {self.tenant}"
            raise RunNotFound(f"{whose} has no run {prefix[:60]!r}") from error


class Authenticator:
    """Turns the credentials of a request into a `Principal`."""

    def __init__(
        self,
        control: Control,
        token: str | None,
        *,
        unlocked: bool,
        sign_in: SignIn | None = None,
        clients: ClientAddresses | None = None,
    ) -> None:
        if token is not None and len(token) < MIN_TOKEN_CHARS:
            raise ConfigError(
                f"$HOLDFAST_TOKEN, or token=, must have at least {MIN_TOKEN_CHARS} characters, not {len(token)}: "
                "generate one with `openssl rand -hex 32`"
            )
        self._control = control
        self._env_hash = None if token is None else hash_credential(to_credential(token))
        self._unlocked = unlocked and token is None
        self._throttle = SignInThrottle()
        self._sign_in = sign_in
        self._clients = clients or ClientAddresses()

    def authenticate(self, request: Request) -> Principal:
        """Identify the client or raise a 401. Reads the database."""
        bearer = _bearer_token(request)
        if bearer is None:
            found = self._by_cookie(request) or self._by_proxy(request) or self._by_location(request)
        else:
            found = self._by_token(bearer, "bearer", request)
        if found is None:
            raise RequestError(
                401,
                "send a token as `Authorization: Bearer …`, or log in; create one with `holdfast token create`",
                "no_token",
                {"www-authenticate": 'Bearer realm="holdfast"'},
            )
        return found

    def is_still_valid(self, request: Request) -> bool:
        """Return whether the credentials of a request that was accepted are valid now."""
        bearer = _bearer_token(request)
        if bearer is None:
            return (self._by_cookie(request) or self._by_proxy(request) or self._by_location(request)) is not None
        id = parse_token_id(bearer)
        return self._is_env_token(bearer) or (id is not None and self._control.tokens.is_valid(id))

    # Browsers

    def log_in(self, token: str, request: Request) -> str | None:
        """Return the secret of a new login for a valid token, otherwise None."""
        principal = self._by_token(token, "cookie", request)
        if principal is None:
            return None
        self.log_out(request)
        log.signed_in(principal.by, client_of(request))
        with _signing(principal, request), self._control.audit.record("sign in"):
            return self._control.logins.create(parse_token_id(token) or self._env_id())

    def log_in_as(self, identity: Identity, request: Request) -> str:
        """Return the secret of a new login of an identity that the provider vouches for."""
        principal = self._of_identity(identity, "cookie", "", ("", ""))  # refuses an identity without a role
        self.log_out(request)
        log.signed_in(principal.by, client_of(request))
        stored = OIDC_LOGIN + msgspec.json.encode([identity.name, identity.groups]).decode()
        with _signing(principal, request), self._control.audit.record("sign in"):
            return self._control.logins.create(stored)

    def log_out(self, request: Request) -> bool:
        """End the login of a browser; return whether it began at the identity provider."""
        secret, principal = request.cookies.get(COOKIE), None
        found = self._control.logins.find(secret, in_use=False) if secret else None
        with suppress(RequestError):  # its grant was removed
            principal = self._by_cookie(request)
        if secret and self._control.logins.end(secret):
            log.signed_out(client_of(request))
            if principal is not None:
                with _signing(principal, request), self._control.audit.record("sign out"):
                    pass
        return found is not None and found[0].startswith(OIDC_LOGIN)

    def _by_cookie(self, request: Request) -> Principal | None:
        secret = request.cookies.get(COOKIE)
        # Pages refresh themselves with fetch and event streams: that doesn't mean that the user is there.
        in_use = request.headers.get("sec-fetch-dest", "document") == "document"
        found = self._control.logins.find(secret, in_use=in_use) if secret else None
        if secret is None or found is None:
            return None
        token_id, info = found
        csrf, keys = _csrf_token(secret), (token_id, f"login {_csrf_token(secret)}")
        if info is not None:
            return Principal(info.name, info.roles, info.scope, "cookie", csrf, keys)
        if self._env_hash is not None and token_id == self._env_id():
            return Principal("$HOLDFAST_TOKEN", ("admin",), EVERYTHING, "cookie", csrf, keys)
        if token_id.startswith(OIDC_LOGIN) and self._sign_in is not None and self._sign_in.oidc is not None:
            name, groups = msgspec.json.decode(token_id.removeprefix(OIDC_LOGIN), type=tuple[str, tuple[str, ...]])
            return self._of_identity(Identity(name, groups), "cookie", csrf, (f"user {name}", keys[1]))
        return None

    # Proxies

    def _by_proxy(self, request: Request) -> Principal | None:
        """Accept the identity that a trusted proxy names. Anyone else could write the header, so it is ignored then."""
        header = None if self._sign_in is None else self._sign_in.identity_header
        peer = request.scope.get("client")
        if self._sign_in is None or header is None or peer is None or not self._clients.is_proxy(str(peer[0])):
            return None
        names = request.headers.getlist(header)
        if len(names) != 1:  # with two, the client may have written one of them
            return None
        groups = request.headers.getlist(self._sign_in.groups_header) if self._sign_in.groups_header else []
        if len(groups) > 1:
            return None
        identity = Identity.of(names[0], groups[0].split(",") if groups else ())
        if identity is None:
            return None
        csrf = _csrf_token(f"{self._control.identity}\0{identity.name}")
        return self._of_identity(identity, "proxy", csrf, (f"user {identity.name}", client_of(request)))

    def _of_identity(self, identity: Identity, method: Method, csrf: str, keys: tuple[str, str]) -> Principal:
        rights = None if self._sign_in is None else self._sign_in.rights_of(identity)
        if rights is None:
            raise RequestError(403, f"{identity.name} has no role here: ask an administrator for one", "no_grant")
        return Principal(identity.name, rights[0], rights[1], method, csrf, keys)

    # Tokens

    def _by_token(self, token: str, method: Method, request: Request) -> Principal | None:
        """Check a token; throttle a client that presents invalid ones.

        A client that is throttled can't guess on: text that isn't a token of ours isn't even compared. Valid tokens,
        which nobody can guess, are still accepted, so that nobody can lock out others behind the same address.
        """
        client = client_of(request)
        pause_s = self._throttle.pause_s(client)
        guessable, csrf = parse_token_id(token) is None, _csrf_token(token)
        if not (guessable and pause_s) and self._is_env_token(token):
            return Principal("$HOLDFAST_TOKEN", ("admin",), EVERYTHING, method, csrf, (self._env_id(), client))
        info: TokenInfo | None = None if guessable else self._control.tokens.check(token)
        if info is not None:
            return Principal(info.name, info.roles, info.scope, method, csrf, (info.id, f"{info.id} {client}"))
        if not pause_s:
            log.sign_in_failed(client, request.url.path)
            if self._throttle.record(client):
                log.sign_ins_throttled(client)
            return None
        raise RequestError(
            429,
            "too many failed sign-ins from your address; retry later",
            "too_many_sign_ins",
            {"retry-after": str(int(pause_s) + 1)},
        )

    def _is_env_token(self, token: str) -> bool:
        given = hash_credential(to_credential(token))
        return self._env_hash is not None and hmac.compare_digest(given, self._env_hash)

    def _env_id(self) -> str:
        """Return what stands for the id of $HOLDFAST_TOKEN. Another token has another one, so its logins end."""
        return f"env.{(self._env_hash or '')[:32]}"

    # Open dashboards

    def _by_location(self, request: Request) -> Principal | None:
        """Accept a local user without a login: started unlocked, reached directly, and no token was ever created."""
        if not self._unlocked or not request.scope.get(DIRECT):
            return None
        if self._control.tokens.ever_existed():
            self._unlocked = False  # for good: revoking the last token doesn't open it again
            return None
        csrf = _csrf_token(self._control.identity)
        return Principal(actor_or_user(None), ("admin",), EVERYTHING, "open", csrf, ("", client_of(request)))


@dataclass(frozen=True, slots=True)
class SiteContext:
    """Everything request handlers share."""

    app: Holdfast
    control: Control
    authenticator: Authenticator
    threads: RequestThreads
    refusals: RefusalRecorder
    oidc: OidcClient | None = None
    replica: InitVar[Control | None] = None
    reads: ReplicaReads = field(init=False)
    """Reads that may be a little behind: on the replica, if there is one."""

    def __post_init__(self, replica: Control | None) -> None:
        object.__setattr__(self, "reads", ReplicaReads(self.control, replica))


def authorize(
    principal: Principal, permission: Permission, *, all_tenants: bool = False, all_tasks: bool = False
) -> None:
    """Raise a 403 unless the principal has the permission.

    `all_tenants` excludes tokens that are limited to a tenant, tasks or queues; `all_tasks`, to tasks or queues.
    """
    if permission not in principal.permissions:
        needed, own = _NEEDED_ROLE.get(permission, "viewer"), " and ".join(principal.roles) or "none"
        code = "read_only" if principal.permissions == {"read"} else "role"
        raise RequestError(403, f"this needs the role {needed}; the role of this token is {own}", code)
    if (all_tenants and principal.scope.is_limited) or (all_tasks and principal.scope.limits_lanes):
        code = "scope" if principal.tenant is None else "one_tenant"
        raise RequestError(403, f"this token is limited to {principal.limits}", code)


def same_secret(given: str, expected: str) -> bool:
    """Compare two secrets in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), expected.encode())


def _bearer_token(request: Request) -> str | None:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else None


def client_of(request: Request) -> str:
    """Return the address that the client of a request is counted by."""
    return str(request.scope.get(CLIENT, "unknown"))


def _signing(principal: Principal, request: Request) -> AbstractContextManager[None]:
    """Say who signs in or out."""
    return acting(principal.by, "dashboard", client_of(request), principal.tenant)


def _csrf_token(secret: str) -> str:
    return hmac.new(secret.encode("utf-8", "surrogateescape"), b"holdfast forms", hashlib.sha256).hexdigest()
