"""Links to gates: a form for a person without a login, and a POST for programs.

The token in the URL is the only credential. GET never changes anything, because mail programs fetch links to scan them.
A decision in a browser takes two forms, as on the dashboard: the first is validated and shown for confirmation, the
second records it. Every link that can't be used gets the same response, whether it is forged, expired or used, so that
a response says nothing about other gates, runs or tenants.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast import errors
from holdfast.control.audit import acting
from holdfast.control.gate_links import MAX_SIGNER_CHARS, LinkedQuestion
from holdfast.errors import ConfigError
from holdfast.model.gate_links import GATE_LINK_PATH, GateLinkToken
from holdfast.model.names import check_name
from holdfast.model.signed_tokens import TOKEN_PARAMETER, SignedValue, TokenRefused
from holdfast.telemetry import log
from holdfast.web.auth import SiteContext, client_of
from holdfast.web.clients import CLIENT
from holdfast.web.pages import forms
from holdfast.web.pages.page import FORM, PageContent, parse_form
from holdfast.web.pages.render import render
from holdfast.web.responses import (
    JSON,
    RequestError,
    check_decoded_size,
    json_response,
    new_problem,
    problem_from,
    problem_response,
    read_body,
)
from holdfast.web.throttle import MAX_FAILURES, RECOVERY_S, Throttle

MAX_LINK_BODY_BYTES = 256 * 1024
MAX_REASON_CHARS = 2000
NO_REASON = "no reason given"
LINK_HEADERS = {
    "content-security-policy": "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-robots-tag": "noindex, nofollow, noarchive",
}
"""Replace those of the other pages. No Referer header carries the token to another page, or to a log."""
NOT_USABLE = "This link can't be used: it is incomplete, has expired, or the decision was made or is no longer needed."
_SIGNER = "signer"

Link: TypeAlias = SignedValue[GateLinkToken]


class LinkThrottle:
    """Bounds requests: unusable links by client, and usable ones by client, by link and overall.

    Checking a signature takes microseconds, so a usable link still works for a client that has sent many others: nobody
    can lock out the others behind the same address.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._unusable = Throttle(MAX_FAILURES, RECOVERY_S, clock)
        self._by_client = Throttle(120, 0.5, clock)
        self._by_link = Throttle(60, 2.0, clock)
        self._overall = Throttle(600, 0.05, clock)

    def refuse(self, client: str, reason: str) -> RequestError:
        """Count a request with an unusable link; return the response."""
        pause_s = self._unusable.pause_s(client)
        if pause_s:
            return _too_many(pause_s)
        log.link_refused(client, reason)
        self._unusable.record(client)
        return RequestError(404, NOT_USABLE, "link_not_usable", {"connection": "close"})

    def admit(self, client: str, link: Link) -> None:
        """Count a request whose link has a valid signature; raise a 429 if there are too many."""
        keys = (self._by_client, client), (self._by_link, link.value.gate.hex()), (self._overall, "")
        pause_s = max(throttle.pause_s(key) for throttle, key in keys)
        if pause_s:
            raise _too_many(pause_s)
        for throttle, key in keys:
            throttle.record(key)


def _too_many(pause_s: float) -> RequestError:
    headers = {"retry-after": str(int(pause_s) + 1), "connection": "close"}
    return RequestError(429, "Too many requests; try again later.", "too_many_requests", headers)


def link_routes(context: SiteContext) -> list[Route]:
    """Return the route of links to gates."""
    throttle = LinkThrottle()

    async def handle(request: Request) -> Response:
        is_program = request.method == "POST" and _media_type(request) != FORM
        client = str(request.scope.get(CLIENT, "unknown"))
        try:
            try:
                link = context.control.gate_links.check(_token(request))
                throttle.admit(client, link)
                response = await _respond(context, request, link)
            except TokenRefused as refused:
                raise throttle.refuse(client, refused.reason) from None
        except Exception as error:
            response = _failure(request, error, is_program=is_program)
        response.headers.update(LINK_HEADERS)
        return response

    return [Route(GATE_LINK_PATH, handle, methods=["GET", "POST"], name="gate_link")]


def _token(request: Request) -> str:
    tokens = request.query_params.getlist(TOKEN_PARAMETER)
    if len(tokens) != 1:
        raise TokenRefused("malformed")
    return tokens[0]


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _respond(context: SiteContext, request: Request, link: Link) -> Response:
    links = context.control.gate_links
    if request.method != "POST":
        question = await context.threads.run(links.read, link)
        page = PageContent("link.html", _values(question))
    elif _media_type(request) == FORM:
        form = parse_form(await read_body(request, FORM, MAX_LINK_BODY_BYTES))
        with acting("link", "link", client_of(request)):
            page = await context.threads.run(_decide, context, link, form)
    else:
        outcome = request.query_params.get("outcome", "complete")
        has_body = request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
        body = await read_body(request, JSON, MAX_LINK_BODY_BYTES) if has_body or _media_type(request) else b""
        with acting("link", "link", client_of(request)):
            return json_response(await context.threads.run(_decide_by_program, context, link, body, outcome))
    return render(request, None, page.template, page.status, **page.values)


def _decide(context: SiteContext, link: Link, form: Mapping[str, str]) -> PageContent:
    """Show a decision for confirmation, record it once it is confirmed, or go back to the form."""
    links = context.control.gate_links
    question = links.read(link)
    step, rejected = form.get("step"), form.get("outcome") == "fail"
    if step == "edit":
        return PageContent("link.html", _values(question, form))
    problems: dict[str, str] = {}
    signer, problem = _signer(question, form)
    if problem:
        problems[_SIGNER] = problem
    reason = form.get("error", "").strip().replace("\r\n", "\n") or NO_REASON
    output = None
    if rejected and len(reason) > MAX_REASON_CHARS:
        problems[""] = f"The reason may have at most {MAX_REASON_CHARS:,} characters."
    elif not rejected:
        submitted = forms.read_form(question.schema, form)
        problems |= submitted.problems
        fault = None if submitted.problems else links.mismatch(question, submitted.value)
        if fault is not None:
            problems[""] = f"Nothing was recorded: {fault}"
        elif not submitted.problems:
            output = links.completed_output(question, submitted.value)
    if problems:
        return PageContent("link.html", _values(question, form, problems), 422)
    values = _values(question, form) | {"rejected": rejected, "reason": reason, "output": output}
    if step != "confirm":
        return PageContent("link_confirm.html", values | {"by": question.recipient or signer})
    if rejected:
        links.reject(link, reason, signer)
    else:
        links.complete(link, output, signer)
    return PageContent("link_done.html", values)


def _signer(question: LinkedQuestion, form: Mapping[str, str]) -> tuple[str | None, str]:
    """Return the name that was entered, unless the link is for a certain recipient, or what is wrong with it."""
    if question.recipient is not None:
        return None, ""
    name = form.get(_SIGNER, "").strip()
    if not name:
        return None, "Your name is required."
    try:
        return check_name(name, "Your name", MAX_SIGNER_CHARS), ""
    except ConfigError as error:
        return None, str(error)


def _decide_by_program(context: SiteContext, link: Link, body: bytes, outcome: str) -> dict[str, str]:
    """Record the decision of a program: the body is the gate's output, or why it is rejected."""
    links = context.control.gate_links
    question = links.read(link)
    try:
        value = msgspec.json.decode(check_decoded_size(body)) if body.strip() else None
    except RecursionError:
        raise RequestError(400, "the body is nested too deeply", "no_json") from None
    if outcome == "complete":
        fault = links.mismatch(question, value)
        if fault is not None:
            raise RequestError(422, fault, "wrong_output")
        links.complete(link, value, None)
        return {"outcome": "completed"}
    if outcome != "fail":
        raise RequestError(422, "outcome must be complete or fail", "invalid")
    links.reject(link, _reason(value), None)
    return {"outcome": "failed"}


def _reason(value: Any) -> str:
    reason = value.get("error") if isinstance(value, dict) else value
    if reason is None:
        return NO_REASON
    if not isinstance(reason, str) or len(reason) > MAX_REASON_CHARS:
        detail = f'to reject, send {{"error": "why"}}, with at most {MAX_REASON_CHARS:,} characters'
        raise RequestError(422, detail, "invalid")
    return reason.strip() or NO_REASON


def _values(
    question: LinkedQuestion, form: Mapping[str, str] | None = None, problems: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the values for the templates. `form`: what was entered; without it, the defaults."""
    fields = forms.form_fields(question.schema)
    entered = {each.name: each.default if form is None else form.get(f"field:{each.name}", "") for each in fields}
    return {
        "question": question,
        "fields": fields,
        "entered": entered,
        "entered_reason": "" if form is None else form.get("error", ""),
        "entered_signer": "" if form is None else form.get(_SIGNER, ""),
        "problems": problems or {},
    }


def _failure(request: Request, error: Exception, *, is_program: bool) -> Response:
    """Describe an error without details of the run: the message of an unexpected error may contain some."""
    where = f"{request.method} {GATE_LINK_PATH}"
    is_known = isinstance(error, RequestError | errors.StoreError | msgspec.DecodeError)
    if isinstance(error, errors.TooLarge | errors.NotSerializable):
        problem = new_problem(422, "the answer is too large or can't be stored", "not_storable")
    elif is_known or not isinstance(error, errors.HoldfastError):
        problem = problem_from(error, where)
    else:
        log.request_failed(where, error)
        problem = new_problem(500, "unexpected error; see the server log", "unexpected")
    headers = dict(error.headers) if isinstance(error, RequestError) else {}
    if is_program:
        return problem_response(problem, headers)
    response = render(request, None, "link_problem.html", problem.status, problem=problem)
    response.headers.update(headers)
    return response
