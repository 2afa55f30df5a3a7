"""The page of access tokens, for admins."""

from __future__ import annotations

from typing import Any

from holdfast.errors import ConfigError
from holdfast.model.access import describe_scope
from holdfast.web.pages.page import FormAction, PageRequest, PageSpec
from holdfast.web.pages.render import link
from holdfast.web.responses import RequestError


def _list(request: PageRequest) -> dict[str, Any]:
    tokens = sorted(request.control.tokens.list(), key=lambda token: not token.is_valid)
    return {"tokens": [(token, describe_scope(token.scope)) for token in tokens]}


def _revoke(request: PageRequest) -> str:
    try:
        changed = request.control.tokens.revoke(request.form.get("token", ""))
    except ConfigError as error:
        raise RequestError(404, str(error), "token_not_found") from None
    return link("/tokens", did="token-revoked" if changed else "token-was-revoked")


PAGES = (
    PageSpec(
        path="/tokens", template="tokens.html", section="tokens", do=_list, all_tenants=True, requires="administer"
    ),
)
ACTIONS = (FormAction(path="/tokens/revoke", do=_revoke, all_tenants=True, requires="administer"),)
