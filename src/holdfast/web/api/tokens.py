"""API operations on access tokens, for admins."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.control.tokens import TOKEN_LIFETIME, TokenInfo
from holdfast.errors import ConfigError
from holdfast.model.access import Role
from holdfast.telemetry import log
from holdfast.web.api.operation import ApiRequest, Operation
from holdfast.web.api.runs import CHANGED
from holdfast.web.responses import RequestError


class TokenRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A token to create. `expires` is its lifetime in seconds; null: it doesn't expire."""

    roles: list[Role]
    tenant: str | None = None
    name: str | None = None
    tasks: list[str] | None = None
    queues: list[str] | None = None
    max_priority: int | None = None
    expires: float | None = TOKEN_LIFETIME.total_seconds()


class TokenCreated(msgspec.Struct):
    """A new token: the only time it can be read."""

    token: str
    info: TokenInfo


def _list(call: ApiRequest) -> dict[str, Any]:
    return {"tokens": call.control.tokens.list()}


def _create(call: ApiRequest) -> TokenCreated:
    asked: TokenRequest = call.body
    made = call.control.tokens.create(
        asked.roles,
        asked.tenant,
        asked.name,
        tasks=asked.tasks,
        queues=asked.queues,
        max_priority=asked.max_priority,
        expires=asked.expires,
    )
    log.token_created(made.info.id, call.principal.by)
    return TokenCreated(made.token, made.info)


def _revoke(call: ApiRequest) -> dict[str, bool]:
    try:
        return {"changed": call.control.tokens.revoke(call.path["token"])}
    except ConfigError as error:
        raise RequestError(404, str(error), "token_not_found") from None


OPERATIONS = (
    Operation(
        method="GET", path="/tokens", name="list_tokens", summary="List access tokens, without their secrets.",
        do=_list, answer={"tokens": list[TokenInfo]}, all_tenants=True, requires="administer",
    ),
    Operation(
        method="POST", path="/tokens", name="create_token", summary="Create an access token. It can't be read again.",
        do=_create, body=TokenRequest, answer=TokenCreated, status=201, all_tenants=True, requires="administer",
    ),
    Operation(
        method="POST", path="/tokens/{token}/revoke", name="revoke_token",
        summary="Revoke an access token and end its logins.",
        do=_revoke, answer=CHANGED, all_tenants=True, requires="administer",
    ),
)  # fmt: skip
