"""Sign-in without tokens: an identity that a trusted proxy or an OpenID Connect provider vouches for, and its roles.

An identity has a name and groups. Grants turn these into roles and a scope, like those of a token; an identity
without a grant has no access.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError
from holdfast.model.access import EVERYTHING, AccessScope, Role, check_roles
from holdfast.model.names import check_name

if TYPE_CHECKING:
    from holdfast.web.oidc import OidcSettings

EXAMPLE = "group:support=viewer+approver:acme"
MAX_GROUPS = 200
MAX_IDENTITY_CHARS = 200


@dataclass(frozen=True, slots=True)
class Identity:
    """Who signed in, as the proxy or provider says."""

    name: str
    groups: tuple[str, ...] = ()

    @classmethod
    def of(cls, name: str, groups: Iterable[str] = ()) -> Identity | None:
        """Return an identity, or None if the name can't be one."""
        name = name.strip()
        if not 0 < len(name) <= MAX_IDENTITY_CHARS or not name.isprintable():
            return None
        return cls(name, tuple(group.strip() for group in groups if group.strip())[:MAX_GROUPS])


@dataclass(frozen=True, slots=True)
class Grant:
    """Roles of a user, a group (`group:ops`) or everybody who signs in (`*`), for one tenant or all."""

    who: str
    roles: tuple[Role, ...]
    tenant: str | None = None

    @classmethod
    def parse(cls, text: str) -> Grant:
        """Parse `WHO=ROLE[+ROLE…][:TENANT]`."""
        who, given, rest = text.rpartition("=")
        names, _, tenant = rest.partition(":")
        if not given or not who.strip() or who.strip() == "group:":
            raise ConfigError(f"{text[:100]!r} is not a grant: write it as {EXAMPLE}, or ada@example.org=admin")
        roles = check_roles([each.strip() for each in names.split("+")])
        if tenant and "admin" in roles:
            raise ConfigError(f"grant {text[:100]!r}: an admin manages everything: omit the tenant, or the role")
        return cls(who.strip(), roles, check_name(tenant, "tenant") if tenant else None)

    def applies_to(self, identity: Identity) -> bool:
        if self.who == "*":
            return True
        if self.who.startswith("group:"):
            return self.who.removeprefix("group:") in identity.groups
        return self.who == identity.name


@dataclass(frozen=True, slots=True)
class SignIn:
    """How people sign in without a token, and what they may do.

    `identity_header`: in which header a trusted proxy names the user; `groups_header`: their groups, separated by
    commas. `grants`: the first that names the user applies, else all that name a group of theirs, else `*`.
    """

    grants: Sequence[Grant]
    identity_header: str | None = None
    groups_header: str | None = None
    oidc: OidcSettings | None = None

    def __post_init__(self) -> None:
        if self.identity_header is None and self.oidc is None:
            raise ConfigError("sign-in needs an identity header or an OpenID Connect provider")
        if self.groups_header is not None and self.identity_header is None:
            raise ConfigError("a groups header needs an identity header")
        if not self.grants:
            raise ConfigError(f"sign-in needs grants, such as {EXAMPLE}: without one, nobody has a role")

    def rights_of(self, identity: Identity) -> tuple[tuple[Role, ...], AccessScope] | None:
        """Return the roles and the scope of an identity; None if no grant names it.

        Grants of several tenants aren't combined: a role in one tenant must not become one in another. Then the first
        tenant's apply.
        """
        own = [grant for grant in self.grants if grant.who == identity.name]
        groups = [grant for grant in self.grants if grant.who.startswith("group:") and grant.applies_to(identity)]
        found = own[:1] or groups or [grant for grant in self.grants if grant.who == "*"][:1]
        if not found:
            return None
        tenant = found[0].tenant
        roles = check_roles({role for grant in found if grant.tenant == tenant for role in grant.roles})
        return roles, EVERYTHING if tenant is None else AccessScope(tenant=tenant)
