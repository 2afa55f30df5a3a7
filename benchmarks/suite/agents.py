"""The time of an agent's turn with a faked model, durable and not: a request of the model and a call of a tool."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

from benchmarks.benchmark import HOLDFAST, Benchmark, Case, MetricKey, Metrics, compare_with
from benchmarks.databases import Backend
from holdfast.app import Holdfast
from holdfast.model.retry import Retry
from holdfast.task.context import Context

PLAIN = "no durability"
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
        return {"turns": options.count}

    def cases(self, backend: Backend, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        def measure() -> Metrics:
            with closing(backend.create_database()) as db:
                return {"": durable_turn_ms(db.url, options.count)}

        return [
            Case(backend.name, HOLDFAST, measure),
            Case(backend.name, PLAIN, lambda: {"": plain_turn_ms(options.count)}),
        ]

    def pairs_to_compare(self, keys: Sequence[MetricKey]) -> list[tuple[MetricKey, MetricKey]]:
        return compare_with(keys, PLAIN)


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

    with app.worker():
        converse.enqueue().result(timeout=TIMEOUT_S)
    return timed.median_ms()
