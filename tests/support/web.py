"""A client that calls an ASGI application in this process, as a browser or a program would."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from starlette.types import ASGIApp

HOST = "localhost:8787"
FORM_KEY = re.compile(r'name="csrf_token" value="([0-9a-f]+)"')


@dataclass
class Answer:
    """A response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Visitor:
    """A client with or without a token or a cookie."""

    site: ASGIApp
    token: str | None = None
    cookie: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    root: str = ""
    scope: dict[str, Any] = field(default_factory=dict)
    """Replaces parts of the ASGI scope, such as the client's address."""

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Answer:
        """Send JSON, as a program does."""
        data = b"" if body is None else json.dumps(body).encode()
        return self.ask("POST", path, data, {"content-type": "application/json", **headers})

    def submit(self, path: str, form: dict[str, str], **headers: str) -> Answer:
        """Send a form, as a browser does."""
        kind = {"content-type": "application/x-www-form-urlencoded", "origin": f"http://{HOST}"}
        return self.ask("POST", path, urlencode(form).encode(), kind | headers)

    def csrf_token(self) -> str:
        """Read the CSRF token from a form."""
        found = FORM_KEY.search(self.get("/runs/" + self.any_run()).text)
        assert found is not None
        return found[1]

    def any_run(self) -> str:
        return str(self.get("/api/v1/runs?limit=1").json["runs"][0]["id"])

    def ask(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Answer:
        given = {"host": HOST, "content-length": str(len(body)), **self.headers}
        if self.token is not None:
            given["authorization"] = f"Bearer {self.token}"
        if self.cookie is not None:
            given["cookie"] = self.cookie
        given |= {name.replace("_", "-"): value for name, value in (headers or {}).items()}
        return asyncio.run(_ask(self.site, method, self.root + path, body, given, self.root, self.scope))


async def _ask(
    site: ASGIApp,
    method: str,
    path: str,
    body: bytes,
    headers: dict[str, str],
    root: str,
    replaced: dict[str, Any] | None = None,
) -> Answer:
    plain, _, query = path.partition("?")
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": plain, "raw_path": quote(plain).encode(), "query_string": query.encode(), "root_path": root,
        "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8787), **(replaced or {}),
    }  # fmt: skip
    sent = False
    got: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            await asyncio.sleep(3600)
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        got.append(message)

    await site(scope, receive, send)
    headers_back: dict[str, str] = {}
    for raw, value in got[0]["headers"]:
        name = raw.decode().lower()
        headers_back[name] = f"{headers_back[name]}, {value.decode()}" if name in headers_back else value.decode()
    return Answer(got[0]["status"], headers_back, b"".join(each.get("body", b"") for each in got[1:]))
