"""The routes of all pages, their actions, the login, and the files that they need."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from holdfast.web.answers import problem_answer
from holdfast.web.pages import bulk, gates, others, overview, run, runs
from holdfast.web.pages.files import FILES
from holdfast.web.pages.login import login_routes
from holdfast.web.pages.table import action_route, page_route
from holdfast.web.place import Place
from holdfast.web.problems import Refusal, problem_of

PAGES = (*overview.PAGES, *others.PAGES, *runs.PAGES, *bulk.PAGES, *run.PAGES, *gates.PAGES)
ACTIONS = (*overview.ACTIONS, *others.ACTIONS, *bulk.ACTIONS, *run.ACTIONS, *gates.ACTIONS)


def page_routes(place: Place) -> list[BaseRoute]:
    return [
        *(page_route(place, page) for page in PAGES),
        *(action_route(place, action) for action in ACTIONS),
        *login_routes(place),
        Route("/static/{name}", _file, methods=["GET"]),
    ]


async def _file(request: Request) -> Response:
    """Files are for everybody: there is nothing in them."""
    found = FILES.get(request.path_params["name"])
    if found is None:
        return problem_answer(problem_of(Refusal(404, "there is no such file", "no_route"), request.url.path))
    return Response(found.data, headers={"cache-control": "public, max-age=31536000"}, media_type=found.kind)
