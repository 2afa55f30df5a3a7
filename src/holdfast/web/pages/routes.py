"""The routes of the dashboard: pages, form actions, login and static files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from holdfast.control.tokens import LOGIN_LIFETIME_S
from holdfast.telemetry import log
from holdfast.web.auth import COOKIE, SiteContext, client_of, same_secret
from holdfast.web.pages import (
    audit,
    budgets,
    enqueue,
    events,
    gates,
    overview,
    queues,
    resources,
    run_list,
    runs,
    tasks,
    tenants,
    tokens,
    topics,
    tree_chart,
    workers,
)
from holdfast.web.pages.page import action_route, error_page, page_route, read_form
from holdfast.web.pages.render import STATIC_FILES, render
from holdfast.web.responses import MAX_ANONYMOUS_BODY_BYTES, RequestError, error_response

if TYPE_CHECKING:
    from holdfast.web.oidc import OidcClient

FLOW_COOKIE = "holdfast_sign_in"
FLOW_LIFETIME_S = 600
LOGIN = "/login"
LOGOUT = "/logout"
OIDC_CALLBACK = "/login/oidc/callback"
ID_TOKEN_COOKIE = "holdfast_id_token"
"""Keeps the id token in the browser, which sends it when it logs out: the provider asks for it, nobody else does."""
MAX_ID_TOKEN_CHARS = 3500
"""Browsers drop larger cookies."""
PAGES = (
    *overview.PAGES,
    *tasks.PAGES,
    *enqueue.PAGES,
    *queues.PAGES,
    *tenants.PAGES,
    *workers.PAGES,
    *gates.PAGES,
    *events.PAGES,
    *topics.PAGES,
    *resources.PAGES,
    *budgets.PAGES,
    *run_list.PAGES,
    *runs.PAGES,
    *tree_chart.PAGES,
    *tokens.PAGES,
    *audit.PAGES,
)
ACTIONS = (
    *queues.ACTIONS,
    *enqueue.ACTIONS,
    *gates.ACTIONS,
    *events.ACTIONS,
    *topics.ACTIONS,
    *resources.ACTIONS,
    *budgets.ACTIONS,
    *run_list.ACTIONS,
    *runs.ACTIONS,
    *tokens.ACTIONS,
)


def page_routes(context: SiteContext) -> list[BaseRoute]:
    return [
        *(page_route(context, page) for page in PAGES),
        *(action_route(context, action) for action in ACTIONS),
        *_login_routes(context),
        Route("/static/{name}", _static_file, methods=["GET"]),
    ]


async def _static_file(request: Request) -> Response:
    found = STATIC_FILES.get(request.path_params["name"])
    if found is None:
        return error_response(RequestError(404, "this file does not exist", "no_route"), request)
    return Response(found.data, headers={"cache-control": "public, max-age=31536000"}, media_type=found.media_type)


def _login_routes(context: SiteContext) -> list[Route]:
    """Log in with a token and out again. The cookie is out of reach for scripts and other sites."""

    async def show(request: Request) -> Response:
        return render(request, None, "login.html", next_page="/", invalid=False)

    async def log_in(request: Request) -> Response:
        try:
            form = await read_form(request, MAX_ANONYMOUS_BODY_BYTES)
            token = form.get("token", "").strip()
            cookie = await context.threads.run(context.authenticator.log_in, token, request)
            next_page = _local_path(form.get("next", "/"))
            if cookie is None:
                return render(request, None, "login.html", 401, next_page=next_page, invalid=True)
            root = request.scope.get("root_path", "")
            answer = RedirectResponse(root + next_page, 303)
            answer.set_cookie(
                COOKIE, cookie, max_age=LOGIN_LIFETIME_S, path=root or "/", httponly=True, samesite="strict",
                secure=_uses_tls(request),
            )  # fmt: skip
            return answer
        except Exception as error:
            return error_page(error, request)

    async def log_out(request: Request) -> Response:
        try:
            principal = await context.threads.run(context.authenticator.authenticate, request)
            form = await read_form(request)
            root = request.scope.get("root_path", "")
            answer: Response = RedirectResponse(root + LOGIN, 303)
            if same_secret(form.get("csrf_token", ""), principal.csrf_token):
                by_provider = await context.threads.run(context.authenticator.log_out, request)
                if context.oidc is not None and by_provider:
                    hint = request.cookies.get(ID_TOKEN_COOKIE)
                    address = await context.threads.run(context.oidc.end, hint)
                    if address is not None:
                        # The content security policy lets no form lead to another site, but a page may.
                        answer = render(request, None, "signed_out.html", address=address)
                answer.delete_cookie(COOKIE, path=root or "/", httponly=True, samesite="strict")
                answer.delete_cookie(ID_TOKEN_COOKIE, path=root + LOGOUT, httponly=True, samesite="strict")
            return answer
        except Exception as error:
            return error_page(error, request)

    return [
        *([] if context.oidc is None else _oidc_routes(context, context.oidc)),
        Route(LOGIN, show, methods=["GET"]),
        Route(LOGIN, log_in, methods=["POST"]),
        Route(LOGOUT, log_out, methods=["POST"]),
    ]


def _oidc_routes(context: SiteContext, client: OidcClient) -> list[Route]:
    """Sign in with the identity provider: send the browser there, and take it back."""
    is_secure = (context.app.links.public_url or "").startswith("https://")

    async def begin(request: Request) -> Response:
        try:
            next_page = _local_path(request.query_params.get("next", "/"))
            address, flow = await context.threads.run(client.begin, next_page)
            answer = RedirectResponse(address, 303)
            answer.set_cookie(
                FLOW_COOKIE, flow, max_age=FLOW_LIFETIME_S, path=request.scope.get("root_path", "") + "/login",
                httponly=True, samesite="lax", secure=is_secure,
            )  # fmt: skip
            return answer
        except Exception as error:
            return error_page(error, request)

    async def finish(request: Request) -> Response:
        root = request.scope.get("root_path", "")
        try:
            flow, query = request.cookies.get(FLOW_COOKIE, ""), dict(request.query_params)
            found = await context.threads.run(client.finish, flow, query)
            cookie = await context.threads.run(context.authenticator.log_in_as, found.identity, request)
            # The browser doesn't send a strict cookie to where another site's redirect leads, but to where a page does.
            answer = render(request, None, "signed_in.html", next_page=found.next_page, by=found.identity.name)
            answer.set_cookie(
                COOKIE, cookie, max_age=LOGIN_LIFETIME_S, path=root or "/", httponly=True, samesite="strict",
                secure=is_secure,
            )  # fmt: skip
            if len(found.id_token) <= MAX_ID_TOKEN_CHARS:
                answer.set_cookie(
                    ID_TOKEN_COOKIE, found.id_token, max_age=LOGIN_LIFETIME_S, path=root + LOGOUT, httponly=True,
                    samesite="strict", secure=is_secure,
                )  # fmt: skip
        except Exception as error:
            log.sign_in_failed(client_of(request), OIDC_CALLBACK)
            answer = error_page(error, request)
        answer.delete_cookie(FLOW_COOKIE, path=root + "/login", httponly=True, samesite="lax")
        return answer

    return [Route("/login/oidc", begin, methods=["GET"]), Route(OIDC_CALLBACK, finish, methods=["GET"])]


def _uses_tls(request: Request) -> bool:
    """Return whether the browser uses TLS, to this server or to a proxy in front of it, according to its Origin."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def _local_path(path: str) -> str:
    """Return the path if it stays within this site, otherwise the start page."""
    local = path.startswith("/") and not path.startswith("//") and "\\" not in path
    return path if local and path.isprintable() else "/"
