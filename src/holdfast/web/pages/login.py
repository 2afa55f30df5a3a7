"""Logging in with a token, and out. The browser gets a cookie that no script can read and no other site can use."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from holdfast.web.pages.render import page
from holdfast.web.pages.table import form_of, refused_page
from holdfast.web.place import Place
from holdfast.web.visitors import COOKIE, LOGIN_SECONDS, same_secret


def login_routes(place: Place) -> list[Route]:
    async def show(request: Request) -> Response:
        return page(request, None, "login.html", following="/", wrong=False)

    async def log_in(request: Request) -> Response:
        try:
            form = await form_of(request)
            cookie = await asyncio.to_thread(place.visitors.cookie_for, form.get("token", "").strip())
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
            return refused_page(error, request, None)

    async def log_out(request: Request) -> Response:
        try:
            visitor = await asyncio.to_thread(place.visitors.of, request)
            form = await form_of(request)
            root = request.scope.get("root_path", "")
            answer = RedirectResponse(f"{root}/login", 303)
            if same_secret(form.get("form_key", ""), visitor.form_key):
                answer.delete_cookie(COOKIE, path=root or "/", httponly=True, samesite="strict")
            return answer
        except Exception as error:
            return refused_page(error, request, None)

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
