"""Who may do what: the roles of access tokens, and the scope to which a token is limited."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.names import check_name, quoted

Role: TypeAlias = Literal["viewer", "approver", "operator", "admin"]
Permission: TypeAlias = Literal["read", "approve", "operate", "audit", "administer"]

ROLES: tuple[Role, ...] = get_args(Role)
PERMISSIONS: dict[Role, frozenset[Permission]] = {
    "viewer": frozenset({"read"}),
    "approver": frozenset({"read", "approve"}),
    "operator": frozenset({"read", "operate"}),
    "admin": frozenset({"read", "approve", "operate", "audit", "administer"}),
}
"""Operators act on runs, approvers decide gates: a token may have both roles, or only one, so that nobody approves
their own work. Admins also manage tokens, and may enqueue any name at any priority."""
ROLE_SHORTHANDS: dict[str, tuple[Role, ...]] = {"read": ("viewer",), "operate": ("operator", "approver")}

MAX_PATTERNS = 100


class AccessScope(msgspec.Struct, frozen=True, kw_only=True):
    """The runs that a token is limited to, and what it may enqueue. None: no limit.

    `tasks` and `queues` are names; one that ends with `*` stands for all names that begin with the rest.
    """

    tenant: str | None = None
    tasks: tuple[str, ...] | None = None
    queues: tuple[str, ...] | None = None
    max_priority: int | None = None
    """The highest priority of enqueued runs; None: that of the task."""

    @property
    def is_limited(self) -> bool:
        """Whether there are runs that it doesn't cover."""
        return self.tenant is not None or self.limits_lanes

    @property
    def limits_lanes(self) -> bool:
        """Whether it is limited to some tasks or queues."""
        return self.tasks is not None or self.queues is not None

    def covers_tenant(self, tenant: str | None) -> bool:
        return self.tenant is None or tenant == self.tenant

    def covers_lane(self, queue: str, task: str) -> bool:
        return _matches(self.tasks, task) and _matches(self.queues, queue)


EVERYTHING = AccessScope()


def check_roles(given: str | Iterable[str]) -> tuple[Role, ...]:
    """Return the roles, checked and in a fixed order. Also accepts `read` and `operate`, the permissions of 0.1."""
    names = [given] if isinstance(given, str) else list(given)
    wanted = {role for name in names for role in ROLE_SHORTHANDS.get(name, (name,))}
    for name in wanted:
        if name not in ROLES:
            raise ConfigError(f"unknown role {quoted(str(name))}: the roles are {', '.join(ROLES)}")
    if not wanted:
        raise ConfigError(f"a token needs at least one role: {', '.join(ROLES)}")
    return tuple(role for role in ROLES if role in wanted)


def check_patterns(given: Iterable[str] | None, what: str) -> tuple[str, ...] | None:
    """Return the patterns of a scope, checked."""
    if given is None:
        return None
    if isinstance(given, str):
        raise ConfigError(f"{what} must be a list of names, not a str")
    patterns = tuple(dict.fromkeys(check_name(each, what) for each in given))
    if not 1 <= len(patterns) <= MAX_PATTERNS:
        raise ConfigError(f"{what} must have from 1 to {MAX_PATTERNS} names, not {len(patterns)}")
    for pattern in patterns:
        if "*" in pattern[:-1]:
            raise ConfigError(f"{what} may have a * only at its end, unlike {quoted(pattern)}")
    return patterns


def permissions_of(roles: Iterable[Role]) -> frozenset[Permission]:
    found: frozenset[Permission] = frozenset()
    for role in roles:
        found |= PERMISSIONS[role]
    return found


def describe_scope(scope: AccessScope) -> str:
    """Return a scope for people: `tenant acme, tasks mail.*`; empty if it covers everything."""
    parts: list[tuple[str, Any]] = [
        ("tenant", scope.tenant),
        ("tasks", scope.tasks and " ".join(scope.tasks)),
        ("queues", scope.queues and " ".join(scope.queues)),
        ("priority up to", scope.max_priority),
    ]
    return ", ".join(f"{name} {value}" for name, value in parts if value is not None)


def _matches(patterns: tuple[str, ...] | None, name: str) -> bool:
    if patterns is None:
        return True
    return any(name.startswith(each[:-1]) if each.endswith("*") else name == each for each in patterns)
