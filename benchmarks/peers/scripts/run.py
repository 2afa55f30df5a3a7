"""Run a peer in its own environment: `python run.py PEER prepare|work|enqueue|direct|measure_… JSON`.

`prepare` creates the tables, `work` runs a worker until it is stopped, `enqueue` enqueues jobs, and `direct` does all
the work in this process. The last two print their rate as a line of JSON; `measure_…` prints milliseconds.
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

PAUSE_RANGE_S = (0.02, 0.06)
BULK_JOBS = 1000
STEPS = 10

Arguments = dict[str, Any]


class Enqueuer(Protocol):
    """How a peer enqueues jobs."""

    async def one(self, arguments: Arguments) -> None: ...

    async def many(self, arguments: Sequence[Arguments]) -> None: ...

    async def close(self) -> None: ...


@dataclass
class PeerConfig:
    """The parameters of a process, and the marker files by which it reports when its jobs start."""

    url: str
    scratch: Path
    count: int
    task: str
    mode: str
    callers: int
    settings: dict[str, Any]
    steps: int = STEPS
    has_started: bool = field(default=False)

    @property
    def file(self) -> Path:
        """The path of the SQLite database."""
        return self.scratch / "peer.db"

    def mark_start(self) -> None:
        """Record when this process started its first job."""
        if self.has_started:
            return
        self.has_started = True
        incomplete = self.scratch / f"first-{os.getpid()}.part"
        incomplete.write_text(repr(time.time()))
        incomplete.rename(incomplete.with_suffix(""))

    def handle(self, arguments: Arguments) -> None:
        """Do what the no-op job does."""
        self.mark_start()
        if "sent_at" in arguments:
            latency = time.time() - arguments["sent_at"]
            with (self.scratch / "latency").open("a") as file:
                file.write(f"{latency}\n")

    def payloads(self) -> list[Arguments]:
        return [payload(number) for number in range(self.count)]


def payload(number: int) -> Arguments:
    return {"number": number, "text": "hello world"}


async def single(enqueuer: Enqueuer, config: PeerConfig) -> None:
    for arguments in config.payloads():
        await enqueuer.one(arguments)


async def concurrent(enqueuer: Enqueuer, config: PeerConfig) -> None:
    async def caller(first: int) -> None:
        for number in range(first, config.count, config.callers):
            await enqueuer.one(payload(number))

    await asyncio.gather(*[caller(first) for first in range(config.callers)])


async def bulk(enqueuer: Enqueuer, config: PeerConfig) -> None:
    for first in range(0, config.count, BULK_JOBS):
        await enqueuer.many([payload(number) for number in range(first, min(config.count, first + BULK_JOBS))])


async def paced(enqueuer: Enqueuer, config: PeerConfig) -> None:
    """Enqueue with pauses; each job carries the time at which it was sent."""
    for arguments in config.payloads():
        await enqueuer.one({**arguments, "sent_at": time.time()})
        await asyncio.sleep(random.uniform(*PAUSE_RANGE_S))


MODES: dict[str, Callable[[Enqueuer, PeerConfig], Coroutine[Any, Any, None]]] = {
    "single": single,
    "concurrent": concurrent,
    "bulk": bulk,
    "paced": paced,
}


async def enqueue(peer: Any, config: PeerConfig) -> dict[str, float]:
    enqueuer: Enqueuer = await peer.open_enqueuer(config)
    started = time.perf_counter()
    await MODES[config.mode](enqueuer, config)
    seconds = time.perf_counter() - started
    await enqueuer.close()
    return {"rate": config.count / seconds}


def run(outcome: Any) -> Any:
    """Run a coroutine, on uvloop if it is installed; return anything else as it is."""
    if not asyncio.iscoroutine(outcome):
        return outcome
    try:
        uvloop = importlib.import_module("uvloop")
    except ImportError:
        return asyncio.run(outcome)
    return uvloop.run(outcome)


def exit_with_parent() -> None:
    """Exit when standard input closes: only the parent process holds its other end."""
    while os.read(0, 1):
        pass
    os._exit(1)


def module_of(name: str, on_sqlite: bool) -> str:
    """Return the module of a peer; some have a separate one for SQLite."""
    for_sqlite = f"with_{name}_on_sqlite"
    return for_sqlite if on_sqlite and Path(__file__).with_name(f"{for_sqlite}.py").exists() else f"with_{name}"


def main() -> None:
    name, action, text = sys.argv[1:]
    threading.Thread(target=exit_with_parent, daemon=True).start()
    values = json.loads(text)
    config = PeerConfig(**{**values, "scratch": Path(values["scratch"])})
    peer: Any = importlib.import_module(module_of(name, on_sqlite=not config.url))
    answer = run(enqueue(peer, config) if action == "enqueue" else getattr(peer, action)(config))
    if answer is not None:
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
