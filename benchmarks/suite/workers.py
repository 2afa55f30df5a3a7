"""Many workers on one database: throughput, start latency, connections, and what an idle worker costs."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.benchmark import HOLDFAST, Benchmark, Case, MeasurementFailed, MetricKey, Metrics, check_count
from benchmarks.databases import Backend, BenchmarkDatabase
from benchmarks.processes import WorkerConfig, Workers, running_workers, scratch_folder
from benchmarks.suite.latency import measure_start_latency
from benchmarks.tasks import QUEUE
from benchmarks.throughput import wait_until_finished

CONCURRENCY = 100
FEW, MANY, IDLE = 4, 32, 196
OTHER_QUEUE = "other"
LATENCY_JOBS = 100
READY_TIMEOUT_S = 600.0
IDLE_WAIT_S = 3.0
CPU_SAMPLE_S = 10.0
SAMPLE_INTERVAL_S = 0.25
CPU, WAKE_UPS = "CPU of an idle worker", "wake-ups of an idle worker"
IDLE_CONNECTIONS, BUSY_CONNECTIONS = "connections of an idle worker", "connections of a busy worker"
P50 = "start latency p50"
UNITS = {CPU: "%", WAKE_UPS: "1/s", IDLE_CONNECTIONS: "", BUSY_CONNECTIONS: ""}

COUNT_WORKERS = "select count(*) from {schema}workers where idle > 0"
COUNT_CONNECTIONS = """
select count(*) from pg_stat_activity
where datname = current_database() and application_name like 'holdfast %' and pid <> pg_backend_pid()
"""


class ManyWorkers(Benchmark):
    """Starts all workers of a case before it gives them work.

    `few` workers are the base of the ratios. `many` serve the same queue; `idle` ones serve another queue, which stays
    empty.
    """

    name = "workers"
    purpose = "what many workers on one database cost: jobs per second, latency, connections, idle CPU"
    unit = "jobs/s"
    count = 60_000
    quick_count = 400

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--few", type=int, default=FEW, help=f"workers of the base case (default: {FEW})")
        add("--many", type=int, default=MANY, help=f"workers on the same queue (default: {MANY})")
        add("--idle", type=int, default=IDLE, help=f"idle workers beside the few busy ones (default: {IDLE})")
        add("--only", choices=["jobs", "latency", "idle"], help="measure only this part")

    def settings(self, options: argparse.Namespace) -> dict[str, Any]:
        return {
            "count": options.count, "concurrency": CONCURRENCY, "few": options.few, "many": options.many,
            "idle": options.idle,
        }  # fmt: skip

    def unit_of(self, metric: str) -> str:
        return "ms" if metric.startswith(P50) else UNITS.get(metric, self.unit)

    def cases(self, backend: Backend, options: argparse.Namespace, stack: ExitStack) -> Sequence[Case]:  # noqa: ARG002
        few, many, idle = options.few, options.many, options.idle
        sample_s = 1.0 if options.quick else CPU_SAMPLE_S
        parts: dict[str, list[tuple[str, Callable[[], Metrics]]]] = {
            "jobs": [
                (f"{few} workers", partial(_measure_jobs, backend, options.count, few, 0)),
                (f"{many} workers", partial(_measure_jobs, backend, options.count, many, 0)),
                (f"{few} busy, {idle} idle", partial(_measure_jobs, backend, options.count, few, idle)),
            ],
            "latency": [
                (f"latency, {number} workers", partial(_measure_latency, backend, options.quick, number))
                for number in (few, few + idle)
            ],
            "idle": [("idle", partial(_measure_idle, backend, sample_s))],
        }
        if backend.name != "PostgreSQL":  # SQLite is for one machine: its workers share one writer
            parts = {"idle": parts["idle"]}
        chosen = [part for name, part in parts.items() if options.only in (None, name)]
        return [Case(backend.name, HOLDFAST, measure, variant) for part in chosen for variant, measure in part]

    def pairs_to_compare(self, keys: Sequence[MetricKey]) -> list[tuple[MetricKey, MetricKey]]:
        """Compare many workers, and few beside idle ones, with few."""
        jobs = [key for key in keys if key.metric.endswith((" workers", " idle")) and not key.metric.startswith(P50)]
        latencies = [key for key in keys if key.metric.startswith(P50)]
        return [(key, group[0]) for group in (jobs, latencies) for key in group[1:]]


@contextmanager
def _running(db: BenchmarkDatabase, scratch: Path, busy: int, idle: int) -> Iterator[Workers]:
    """Run workers, and wait until all of them have found nothing to do."""
    commands = WorkerConfig(busy, CONCURRENCY, [QUEUE] if idle else []).commands(db.url, scratch)
    commands += WorkerConfig(idle, CONCURRENCY, [OTHER_QUEUE]).commands(db.url, scratch)
    with running_workers(commands, scratch) as workers:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while (ready := db.number(COUNT_WORKERS)) < busy + idle:
            workers.check_alive()
            if time.monotonic() > deadline:
                raise MeasurementFailed(f"{ready} of {busy + idle} workers are ready: {workers.last_output()}")
            time.sleep(SAMPLE_INTERVAL_S)
        time.sleep(IDLE_WAIT_S)
        yield workers


def _measure_jobs(backend: Backend, count: int, busy: int, idle: int) -> Metrics:
    """Enqueue jobs into a paused queue, start the workers, and resume the queue."""
    with closing(backend.create_database()) as db, scratch_folder() as scratch:
        db.store.queues.pause([QUEUE])
        db.replace_runs(count)
        own = _own_connections(db)
        with _running(db, scratch, busy, idle) as workers:
            db.store.queues.resume([QUEUE])
            samples: list[float] = []
            sample = partial(_sample_connections, db, own, busy, samples)
            started, finished = wait_until_finished(db, scratch, count, workers, sample)
        check_count("runs done", db.count_done(), count)
    rate = count / (finished - started)
    if idle:
        return {f"{busy} busy, {idle} idle": rate}
    return {f"{busy} workers": rate, **({BUSY_CONNECTIONS: statistics.median(samples)} if busy <= FEW else {})}


def _own_connections(db: BenchmarkDatabase) -> int:
    """Count the connections of this process, after it has opened all that it needs."""
    db.has_unfinished()
    return db.number(COUNT_CONNECTIONS)


def _sample_connections(db: BenchmarkDatabase, own: int, workers: int, samples: list[float]) -> None:
    if not samples or len(samples) % 10 == 0:
        samples.append((db.number(COUNT_CONNECTIONS) - own) / workers)


def _measure_latency(backend: Backend, quick: bool, workers: int) -> Metrics:
    """Send single jobs to workers that all serve the queue and are all idle."""
    with closing(backend.create_database()) as db, scratch_folder() as scratch:
        with _running(db, scratch, workers, 0) as running:
            latencies = measure_start_latency(db, scratch, 10 if quick else LATENCY_JOBS, running)
        return {f"{P50}, {workers} workers": statistics.median(latencies) * 1000}


def _measure_idle(backend: Backend, sample_s: float) -> Metrics:
    """Measure one worker that has run a job and then has nothing to do."""
    with closing(backend.create_database()) as db, scratch_folder() as scratch:
        is_postgres = backend.name == "PostgreSQL"
        own = _own_connections(db) if is_postgres else 0
        with _running(db, scratch, 1, 0) as workers:
            measure_start_latency(db, scratch, 3, workers)
            pid = workers.processes[0].pid
            time.sleep(IDLE_WAIT_S if sample_s < CPU_SAMPLE_S else CPU_SAMPLE_S)
            before, began = _usage(pid), time.monotonic()
            connections = []
            while (elapsed_s := time.monotonic() - began) < sample_s:
                if is_postgres:
                    connections.append(float(db.number(COUNT_CONNECTIONS) - own))
                time.sleep(min(SAMPLE_INTERVAL_S * 4, max(sample_s - elapsed_s, 0.01)))
            cpu_s, switches = (after - first for after, first in zip(_usage(pid), before, strict=True))
    metrics = {CPU: 100 * cpu_s / elapsed_s, WAKE_UPS: switches / elapsed_s}
    return metrics | ({IDLE_CONNECTIONS: statistics.median(connections)} if connections else {})


def _usage(pid: int) -> tuple[float, float]:
    """Return the CPU seconds of a process, and how often its threads have waited for something."""
    cpu_ns = waited = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        cpu_ns += int((thread / "schedstat").read_text().split()[0])
        status = dict(line.split(":", 1) for line in (thread / "status").read_text().splitlines())
        waited += int(status["voluntary_ctxt_switches"])
    return cpu_ns / 1e9, float(waited)
