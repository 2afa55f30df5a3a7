"""The time of an agent's turn with a faked model, durable and not: a request of the model and a call of a tool."""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

from benchmarks.benchmark import HOLDFAST, Benchmark, Case, MetricKey, Metrics, compare_with
from benchmarks.databases import Backend
from holdfast.app import Holdfast
from holdfast.model.retry import Retry
from holdfast.task.context import Context

PLAIN = "no durability"
UNRECORDED = "nothing recorded"
"""The agent with the capability for durability, but without steps: what the framework's own part costs."""
TURN, ADDED = "", "added"
ALTERNATIONS = 3
"""How often a repetition alternates between Holdfast and no durability. The difference is far smaller than what the
time of a turn varies from minute to minute."""
TIMEOUT_S = 300.0


class Agents(Benchmark):
    """Measures one run of an agent alone in a warm worker."""

    name = "agents"
    purpose = "milliseconds of an agent's turn with a faked model, durable and not"
    unit = "ms"
    count = 100
    quick_count = 10
    has_peers = True

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {"turns": options.count, "alternations": ALTERNATIONS}

    def cases(self, backend: Backend, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        def measure() -> Metrics:
            with closing(backend.create_database()) as db:
                return alternated(db.url, options.count)

        def measure_unrecorded() -> Metrics:
            with closing(backend.create_database()) as db, recording_nothing():
                return alternated(db.url, options.count)

        return [
            Case(backend.name, HOLDFAST, measure),
            Case(backend.name, UNRECORDED, measure_unrecorded),
            Case(backend.name, PLAIN, lambda: {TURN: plain_turn_ms(options.count)}),
        ]

    def pairs_to_compare(self, keys: Sequence[MetricKey]) -> list[tuple[MetricKey, MetricKey]]:
        return compare_with(keys, PLAIN)


def alternated(url: str, turns: int) -> Metrics:
    """Return the time of a durable turn, and what it adds to one without durability."""
    pairs = [(plain_turn_ms(turns), durable_turn_ms(url, turns)) for _ in range(ALTERNATIONS)]
    return {
        TURN: statistics.median(durable for _, durable in pairs),
        ADDED: statistics.median(durable - plain for plain, durable in pairs),
    }


@contextmanager
def recording_nothing() -> Iterator[None]:
    """Let the agent's operations run as they are instead of in steps."""
    from holdfast.integrations.pydantic_ai import StepBackend

    async def execute(_: StepBackend, *, body: Any, **__: Any) -> object:
        return await body()

    original, StepBackend.execute = StepBackend.execute, execute  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        StepBackend.execute = original  # type: ignore[method-assign]


def plain_turn_ms(turns: int) -> float:
    from benchmarks.peers.scripts.agent_turns import TimedAgent  # imported here because pydantic-ai loads slowly

    timed = TimedAgent(turns, [])
    asyncio.run(timed.run())
    return timed.median_ms()


def durable_turn_ms(url: str, turns: int) -> float:
    from benchmarks.peers.scripts.agent_turns import TimedAgent
    from holdfast.integrations.pydantic_ai import HoldfastDurability

    timed = TimedAgent(turns, [HoldfastDurability()])
    app = Holdfast(url)

    @app.task(name="bench.agent", retry=Retry(max_attempts=1))
    async def converse(ctx: Context) -> str:  # noqa: ARG001 - the agent finds it
        return await timed.run()

    with closing(app), app.worker():
        converse.enqueue().result(timeout=TIMEOUT_S)
    return timed.median_ms()
