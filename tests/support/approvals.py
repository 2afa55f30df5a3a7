"""An app whose functions and graphs wait for decisions by signed links, and a visitor without a token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from holdfast import Context, Holdfast, Run
from holdfast.control import Control
from holdfast.testing import VirtualClock
from holdfast.web import dashboard
from holdfast.web.links import NOT_USABLE
from tests.support.web import Answer, Visitor

SECRET, OLD_SECRET = "s" * 32, "o" * 32
PUBLIC = "https://ops.example.org"


@dataclass
class Decision:
    """A decision that says why."""

    ok: bool
    note: str
    method: Literal["bank", "card"] = "bank"


FILLED = {
    "field:ok": "true",
    "field:note": "lost parcel",
    "field:method": '"card"',
    "signer": "Ada",
    "outcome": "complete",
}
OUTPUT = {"ok": True, "note": "lost parcel", "method": "card"}
PAYLOAD = {"customer": "Eve <eve@example.org>", "amount": 50, "items": ["rope", "anchor"]}


class Approvals:
    """An app whose functions and graphs wait for decisions, and a visitor without a token."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.clock = VirtualClock()
        self.app = app = Holdfast(url, clock=self.clock, **{"secret": SECRET, "public_url": PUBLIC, **settings})

        @app.task(name="refund")
        async def refund(ctx: Context, amount: int, *, name: str = "refund") -> str:
            decision = await ctx.gate(name, type=Decision, payload={**PAYLOAD, "amount": amount})
            return f"{decision.ok} {decision.note} {decision.method}"

        @app.task(name="call")
        async def call(ctx: Context) -> Any:
            return await ctx.gate("answer")

        @app.task(name="twice")
        async def twice(ctx: Context) -> list[Any]:
            return [await ctx.gate("again"), await ctx.gate("again")]

        @app.task(name="note")
        def note(text: str) -> str:
            return text

        self.refund, self.call, self.twice, self.note = refund, call, twice, note
        self.control = Control(app.store, app.registry, app.links)
        self._sites: list[Any] = []
        self.visitor = Visitor(self.site(token="t" * 40))

    def site(self, **settings: Any) -> Any:
        self._sites.append(dashboard(self.app, **settings))
        return self._sites[-1]

    def close(self) -> None:
        for site in self._sites:
            site.close()
        self.app.close()

    def drain(self) -> None:
        self.app.worker().drain(timeout=60)

    def open(self, task: Any = None, *args: Any, **options: Any) -> Run[Any]:
        """Start a function and let it open its gate."""
        run: Run[Any] = (self.refund if task is None else task).options(**options).enqueue(*(args if task else (50,)))
        self.drain()
        return run

    def link(self, run: Run[Any], gate: str = "refund", **settings: Any) -> str:
        """Return the link as a path of the site."""
        return run.gate(gate).link(**settings).removeprefix(PUBLIC)

    def decide(self, path: str, form: dict[str, str] = FILLED, **headers: str) -> Answer:
        """Fill in the form and confirm it."""
        asked = self.visitor.submit(path, form, origin="null", **headers)
        assert asked.status in (200, 404, 422), asked.text
        return asked if asked.status != 200 else self.visitor.submit(path, form | {"step": "confirm"}, origin="null")

    def result(self, run: Run[Any]) -> Any:
        self.drain()
        return run.result(timeout=30)

    def is_open(self, run: Run[Any]) -> bool:
        return bool(run.gates())


def decided_by(approvals: Approvals, run: Run[Any], gate: str = "refund") -> str | None:
    return approvals.control.gates.read(approvals.control.graphs.node(run.id, gate)).decided_by


def refused(answer: Answer) -> bool:
    """Return whether this is the one response to every link that can't be used."""
    return answer.status == 404 and NOT_USABLE.replace("'", "&#39;") in answer.text
