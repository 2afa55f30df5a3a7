"""One trace per run across two workers, a sleep and a child, as a collector receives it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SHOP = Path(__file__).resolve().parent / "apps" / "shop.py"
NOON = 1_800_000_000_000_000
HOUR = 3600 * 1_000_000


def start(collector, url, micros, process, verb):
    done = subprocess.run(
        [sys.executable, SHOP, url, str(micros), process, verb],
        env={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


def test_a_run_is_one_trace_across_two_workers_a_sleep_and_a_child(database_url, collector):
    run = start(collector, database_url, NOON, "web", "enqueue")
    start(collector, database_url, NOON, "first worker", "work")
    start(collector, database_url, NOON + 2 * HOUR, "second worker", "work")
    batches = [span for span in collector.spans if span.name in ("claim", "commit")]
    trace = [span for span in collector.spans if span not in batches]
    assert len({span.trace for span in trace}) == 1
    by_id = {span.id: span for span in trace}

    def above(span):
        return by_id[span.parent].name if span.parent else None

    assert {(span.process, span.name, above(span)) for span in trace} == {
        ("first worker", "ask the store", "step reserve"),
        ("first worker", "order", "enqueue order"),
        ("first worker", "step reserve", "order"),
        ("second worker", "order", "enqueue order"),
        ("second worker", "pack", "order"),
        ("web", "checkout", None),
        ("web", "enqueue order", "checkout"),
    }
    orders = [span for span in trace if span.name == "order"]
    assert {span.attributes["holdfast.run"] for span in orders} == {run}
    outcomes = [span.attributes["holdfast.outcome"] for span in orders]  # it may or may not suspend for the child
    assert (outcomes[0], set(outcomes[:-1]), outcomes[-1]) == ("waiting", {"waiting"}, "done")
    assert not {span.trace for span in batches} & {span.trace for span in trace}
    for span in trace:
        if span.attributes.get("holdfast.attempt"):
            assert [batch.name for batch in batches if batch.id in span.links] == ["claim"]
            assert [batch for batch in batches if batch.name == "commit" and span.id in batch.links]
