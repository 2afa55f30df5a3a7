"""Runs a peer in its own environment: `python run.py PEER prepare|work|enqueue|direct JSON`.

`prepare` makes the tables, `work` is a worker until it is stopped, `enqueue` puts jobs in, `direct` does all the work
in this process; the last two tell a rate, as a line of JSON.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

PAUSE_SECONDS = (0.02, 0.06)
BULK = 1000
STEPS = 10

Arguments = dict[str, Any]


class Enqueuer(Protocol):
    """How a peer takes work in."""

    async def one(self, arguments: Arguments) -> None: ...

    async def many(self, arguments: Sequence[Arguments]) -> None: ...

    async def close(self) -> None: ...


@dataclass
class Told:
    """What a process is told, and what it tells when its jobs start."""

    url: str
    scratch: Path
    count: int
    task: str
    way: str
    callers: int
    settings: dict[str, Any]
    steps: int = STEPS
    has_started: bool = field(default=False)

    @property
    def file(self) -> Path:
        """The database, where there is no server."""
        return self.scratch / "peer.db"

    def started(self) -> None:
        """A run starts: the first one of this process leaves a mark."""
        if self.has_started:
            return
        self.has_started = True
        unfinished = self.scratch / f"first-{os.getpid()}.part"
        unfinished.write_text(repr(time.time()))
        unfinished.rename(unfinished.with_suffix(""))

    def handle(self, arguments: Arguments) -> None:
        """All that the no-op job does."""
        self.started()
        if "sent_at" in arguments:
            taken = time.time() - arguments["sent_at"]
            with (self.scratch / "latency").open("a") as log:
                log.write(f"{taken}\n")

    def payloads(self) -> list[Arguments]:
        return [payload(number) for number in range(self.count)]


def payload(number: int) -> Arguments:
    return {"number": number, "text": "hello world"}


async def single(enqueuer: Enqueuer, told: Told) -> None:
    for arguments in told.payloads():
        await enqueuer.one(arguments)


async def concurrent(enqueuer: Enqueuer, told: Told) -> None:
    async def caller(first: int) -> None:
        for number in range(first, told.count, told.callers):
            await enqueuer.one(payload(number))

    await asyncio.gather(*[caller(first) for first in range(told.callers)])


async def bulk(enqueuer: Enqueuer, told: Told) -> None:
    for first in range(0, told.count, BULK):
        await enqueuer.many([payload(number) for number in range(first, min(told.count, first + BULK))])


async def paced(enqueuer: Enqueuer, told: Told) -> None:
    """With pauses; each carries the time at which it was sent."""
    for arguments in told.payloads():
        await enqueuer.one({**arguments, "sent_at": time.time()})
        await asyncio.sleep(random.uniform(*PAUSE_SECONDS))


WAYS: dict[str, Callable[[Enqueuer, Told], Coroutine[Any, Any, None]]] = {
    "single": single,
    "concurrent": concurrent,
    "bulk": bulk,
    "paced": paced,
}


async def enqueue(peer: Any, told: Told) -> dict[str, float]:
    enqueuer: Enqueuer = await peer.open_enqueuer(told)
    since = time.perf_counter()
    await WAYS[told.way](enqueuer, told)
    seconds = time.perf_counter() - since
    await enqueuer.close()
    return {"rate": told.count / seconds}


def run(outcome: Any) -> Any:
    """A coroutine is run, on uvloop where that is installed; anything else is the outcome already."""
    if not asyncio.iscoroutine(outcome):
        return outcome
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.run(outcome)
    return uvloop.run(outcome)


def end_with_parent() -> None:
    """The other end of our input is held by the process that started us, and by nobody else."""
    while os.read(0, 1):
        pass
    os._exit(1)


def module_of(name: str, on_sqlite: bool) -> str:
    """A peer may have another module for SQLite."""
    apart = f"with_{name}_on_sqlite"
    return apart if on_sqlite and Path(__file__).with_name(f"{apart}.py").exists() else f"with_{name}"


def main() -> None:
    name, verb, text = sys.argv[1:]
    threading.Thread(target=end_with_parent, daemon=True).start()
    values = json.loads(text)
    told = Told(**{**values, "scratch": Path(values["scratch"])})
    peer: Any = importlib.import_module(module_of(name, on_sqlite=not told.url))
    answer = run(enqueue(peer, told) if verb == "enqueue" else getattr(peer, verb)(told))
    if answer is not None:
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
