"""The pages of workers."""

from __future__ import annotations

from typing import Any

from holdfast.web.pages.page import PageRequest, PageSpec
from holdfast.web.responses import RequestError


def _list(request: PageRequest) -> dict[str, Any]:
    workers = request.control.workers
    found = workers.list()
    any_labels = any(worker.labels for worker in found)
    return {"workers": found, "any_labels": any_labels, "lost": workers.lost(), "live": "/api/v1/live"}


def _show(request: PageRequest) -> dict[str, Any]:
    workers, session = request.control.workers, request.path["session"]
    worker = next((each for each in workers.list() if each.session == session), None)
    lost = next((each for each in workers.lost() if each.session == session), None)
    if worker is None and lost is None:
        detail = f"there is no worker session {session[:100]!r}: it stopped, or was lost more than a day ago"
        raise RequestError(404, detail, "not_found")
    claimed = [] if worker is None else workers.claimed(session)
    return {"worker": worker, "lost": lost, "claimed": claimed, "live": "/api/v1/live"}


PAGES = (
    PageSpec(path="/workers", template="workers.html", section="workers", do=_list, all_tenants=True, may_lag=True),
    PageSpec(
        path="/workers/{session}", template="worker.html", section="workers", do=_show, all_tenants=True, may_lag=True
    ),
)
