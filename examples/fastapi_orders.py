"""A web service with an embedded worker: orders by HTTP, their progress as a stream, and the dashboard.

    python fastapi_orders.py

Needs `pip install fastapi 'holdfast[dashboard]'`. It listens on port 8000; pass `--port 8001` for another one.

    curl -s localhost:8000/orders -H "Content-Type: application/json" -d '{"item": "rope", "pieces": 3}'
    curl -sN localhost:8000/orders/RUN/events
    curl -s localhost:8000/orders/RUN

An order with an `Idempotency-Key` header is accepted once, however often it is sent. Kill the service while it packs
(`kill -9`) and start it again: the order resumes. The dashboard is at http://localhost:8000/holdfast/; log in with the
token that the service prints, or set `$HOLDFAST_TOKEN` to your own.
"""

import asyncio
import json
import os
import secrets
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated
from uuid import UUID

import uvicorn
from fastapi import FastAPI, Header, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field

from holdfast import Context, Holdfast, KeyConflict, Retry, Run, RunNotFound, RunState
from holdfast.web import dashboard

app = Holdfast("sqlite:///orders.db")
token = os.environ.get("HOLDFAST_TOKEN") or secrets.token_urlsafe(32)
board = dashboard(app, token=token)


class Order(BaseModel):
    item: str = Field(min_length=1)
    pieces: int = Field(ge=1, le=100)


class Receipt(BaseModel):
    item: str
    boxes: list[str]


class Status(BaseModel):
    run: UUID
    state: RunState
    receipt: Receipt | None = None
    error: str | None = None


@app.task(retry=Retry(max_attempts=5))
async def fulfill(ctx: Context, order: Order) -> Receipt:
    boxes: list[str] = []
    for number in range(1, order.pieces + 1):
        boxes.append(await ctx.step(pack, order.item, number))
        await ctx.write({"packed": number, "of": order.pieces})
    return Receipt(item=order.item, boxes=boxes)


async def pack(item: str, number: int) -> str:
    await asyncio.sleep(0.2)
    return f"box {number} with {item}"


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with app.worker(lease=5, grace=2):
        yield
    board.close()
    await app.aclose()


site = FastAPI(title="Orders", lifespan=lifespan)
site.mount("/holdfast", board)


@site.post("/orders", status_code=202)
async def take(order: Order, idempotency_key: Annotated[str | None, Header()] = None) -> Status:
    task = fulfill if idempotency_key is None else fulfill.options(key=idempotency_key)
    try:
        return await status_of(await task.aenqueue(order))
    except KeyConflict as conflict:
        raise HTTPException(409, str(conflict)) from None


@site.get("/orders/{id}")
async def show(id: UUID) -> Status:
    return await status_of(await find(id))


@site.get("/orders/{id}/events")
async def follow(id: UUID, after: int = 0) -> StreamingResponse:
    run = await find(id)

    async def lines() -> AsyncIterator[str]:
        async for chunk in run.astream(after=after):
            yield f"id: {chunk.seq}\ndata: {json.dumps(chunk.data)}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


async def find(id: UUID) -> Run[Receipt]:
    try:
        return await app.aget_run(id)
    except RunNotFound:
        raise HTTPException(404, f"order {id} does not exist") from None


async def status_of(run: Run[Receipt]) -> Status:
    info = await run.ainfo()
    error = info.error.message if info.error else None
    return Status(run=info.id, state=info.state, receipt=info.result, error=error)


if __name__ == "__main__":
    port = int(sys.argv[sys.argv.index("--port") + 1]) if "--port" in sys.argv else 8000
    print(f"dashboard: http://localhost:{port}/holdfast/ token: {token}", flush=True)
    uvicorn.run(site, port=port, log_level="warning")
