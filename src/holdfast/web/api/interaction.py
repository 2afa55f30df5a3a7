"""API operations on running functions: read their values, ask them, and read their answers."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

import msgspec

from holdfast.control.interaction import (
    FIRST_POLL_INTERVAL_S,
    MAX_POLL_INTERVAL_S,
    AskInfo,
    PendingAsk,
    ValueInfo,
)
from holdfast.web.api.operation import ApiRequest, Operation

MAX_WAIT_S = 30.0


class AskRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An ask for `ctx.serve` or `ctx.receive_ask`. `key`: the run handles it once, and a repeated request returns the
    same reply. `wait`: seconds to wait for the answer, at most 30; without an answer the status is 202."""

    payload: Any = None
    key: str | None = None
    wait: Annotated[float, msgspec.Meta(ge=0, le=MAX_WAIT_S)] = 10.0


def _values(call: ApiRequest) -> dict[str, list[ValueInfo]]:
    return {"values": call.control.interaction.values(call.run().id)}


def _pending(call: ApiRequest) -> dict[str, list[PendingAsk]]:
    return {"asks": call.control.interaction.pending(call.run().id)}


def _ask(call: ApiRequest) -> AskInfo:
    return call.control.interaction.ask(
        call.run().id, call.path["name"], call.body.payload, call.body.key, by=call.principal.by
    )


async def _wait(call: ApiRequest, ask: AskInfo) -> AskInfo:
    """Wait for the answer. Between two reads the request occupies no thread."""
    deadline, pause = time.monotonic() + call.body.wait, FIRST_POLL_INTERVAL_S
    while ask.state == "pending" and (left := deadline - time.monotonic()) > 0:
        await asyncio.sleep(min(pause, left))
        pause = min(pause * 1.5, MAX_POLL_INTERVAL_S)
        ask = await call.context.threads.run(call.control.interaction.answer, ask.run, ask.key)
    return ask


def _answer(call: ApiRequest) -> AskInfo:
    return call.control.interaction.answer(call.run().id, call.path["key"])


def _status(ask: AskInfo) -> int:
    return 202 if ask.state == "pending" else 200


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="GET", path="/runs/{id}/values", name="list_values",
        summary="List the values that a run publishes.", do=_values, answer={"values": list[ValueInfo]},
    ),
    Operation(
        method="GET", path="/runs/{id}/asks", name="list_asks", summary="List the asks that a run hasn't answered yet.",
        do=_pending, answer={"asks": list[PendingAsk]},
    ),
    Operation(
        method="POST", path="/runs/{id}/asks/{name}", name="ask_run",
        summary="Ask an unfinished run and wait for its answer.",
        do=_ask, follow=_wait, body=AskRequest, answer=AskInfo, status_of=_status,
    ),
    Operation(
        method="GET", path="/runs/{id}/answers/{key}", name="get_answer",
        summary="Get the answer to an ask by the ask's key.", do=_answer, answer=AskInfo, status_of=_status,
    ),
)  # fmt: skip
