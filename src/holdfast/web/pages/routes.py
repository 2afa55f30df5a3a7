"""The routes of all pages, their actions, the login, and the files that they need."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from holdfast.web.auth import COOKIE, LOGIN_SECONDS, SiteContext, same_secret
from holdfast.web.pages import overview, resources, runs
from holdfast.web.pages.page import action_route, error_page, form_of, page_route
from holdfast.web.pages.render import FILES, page
from holdfast.web.responses import RequestError, problem_from, problem_response


def login_routes(context: SiteContext) -> list[Route]:
    async def show(request: Request) -> Response:
        return page(request, None, "login.html", following="/", wrong=False)

    async def log_in(request: Request) -> Response:
        try:
            form = await form_of(request)
            cookie = await asyncio.to_thread(context.authenticator.cookie_for, form.get("token", "").strip())
            following = _within(form.get("following", "/"))
            if cookie is None:
                return page(request, None, "login.html", 401, following=following, wrong=True)
            root = request.scope.get("root_path", "")
            answer = RedirectResponse(root + following, 303)
            answer.set_cookie(
                COOKIE, cookie, max_age=LOGIN_SECONDS, path=root or "/", httponly=True, samesite="strict",
                secure=_by_tls(request),
            )  # fmt: skip
            return answer
        except Exception as error:
            return error_page(error, request, None)

    async def log_out(request: Request) -> Response:
        try:
            principal = await asyncio.to_thread(context.authenticator.of, request)
            form = await form_of(request)
            root = request.scope.get("root_path", "")
            answer = RedirectResponse(f"{root}/login", 303)
            if same_secret(form.get("csrf_token", ""), principal.csrf_token):
                answer.delete_cookie(COOKIE, path=root or "/", httponly=True, samesite="strict")
            return answer
        except Exception as error:
            return error_page(error, request, None)

    return [
        Route("/login", show, methods=["GET"]),
        Route("/login", log_in, methods=["POST"]),
        Route("/logout", log_out, methods=["POST"]),
    ]


def _by_tls(request: Request) -> bool:
    """Whether the browser speaks TLS: with us, or with something in front of us, as its Origin tells."""
    return request.url.scheme == "https" or request.headers.get("origin", "").startswith("https://")


def _within(following: str) -> str:
    """An address within the site, never one elsewhere."""
    plain = following.startswith("/") and not following.startswith("//") and "\\" not in following
    return following if plain and following.isprintable() else "/"


PAGES = (*overview.PAGES, *resources.PAGES, *runs.PAGES)
ACTIONS = (*overview.ACTIONS, *resources.ACTIONS, *runs.ACTIONS)


def page_routes(context: SiteContext) -> list[BaseRoute]:
    return [
        *(page_route(context, page) for page in PAGES),
        *(action_route(context, action) for action in ACTIONS),
        *login_routes(context),
        Route("/static/{name}", _file, methods=["GET"]),
    ]


async def _file(request: Request) -> Response:
    """Files are for everybody: there is nothing in them."""
    found = FILES.get(request.path_params["name"])
    if found is None:
        return problem_response(problem_from(RequestError(404, "there is no such file", "no_route"), request.url.path))
    return Response(found.data, headers={"cache-control": "public, max-age=31536000"}, media_type=found.kind)
