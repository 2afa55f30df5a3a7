"""A long run at half of a worker's throughput, to check that memory, claim latency and tables don't grow."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast import Holdfast
from holdfast.testing.server import PostgresServer
from tests.chaos.soak_worker import make_app
from tests.support.history_queries import fetch
from tests.support.wait_until import wait_until

WORKER = Path(__file__).with_name("soak_worker.py")
WARM_UP_JOBS = 10_000
"""Jobs to measure the maximum throughput of a worker."""
STEPS_EVERY = 20
"""One run in this many is a durable function with steps and a child."""
FEED_INTERVAL_S = 0.1
SAMPLE_INTERVAL_S = 5.0
MAX_RETENTION_S = 60.0
MAX_MEMORY_GROWTH = 1.05
MAX_LATENCY_GROWTH = 1.5
IGNORED_LATENCY_MS = 20.0
MAX_TABLE_GROWTH = 1.25
PROBES = """
select started_at - created_at from {}runs r join {}lanes l on l.id = r.lane
where l.task = 'probe' and r.created_at > %d and r.started_at is not null
"""


@dataclass(frozen=True)
class Sample:
    """One sample. Memory in MB, latency in milliseconds."""

    at: float
    memory: float
    latency: float
    slow_latency: float
    rows: int
    unfinished: int
    megabytes: float


class Soak:
    """One worker process, fed by this one."""

    def __init__(self, url: str, size: Callable[[Holdfast], float], folder: Path, log: Callable[[str], None]) -> None:
        self._url = url
        self._size = size
        self._folder = folder
        self._log = log
        self.samples: list[Sample] = []
        self.rate = 0.0
        self.most = 0.0

    def run(self, seconds: float) -> None:
        keep = min(MAX_RETENTION_S, seconds / 10)
        app = make_app(self._url, keep)
        with closing(app):
            app.store.prepare()
            worker = self._start(keep)
            try:
                self.most = self._measure(app)
                self.rate = self.most / 2
                self._log(f"a worker runs {self.most:,.0f} runs/s here; feeding {self.rate:,.0f}/s for {seconds:.0f} s")
                self._feed(app, worker.pid, seconds)
            finally:
                worker.terminate()
                worker.wait()

    def _start(self, keep: float) -> subprocess.Popen[bytes]:
        with (self._folder / "worker.log").open("wb") as log:
            command = [sys.executable, str(WORKER), self._url, str(keep)]
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)

    def _measure(self, app: Holdfast) -> float:
        """Measure the maximum throughput with the second of two equal loads, on a warm worker."""
        for _ in range(2):
            _enqueue(app, WARM_UP_JOBS)
            since = time.monotonic()
            wait_until(lambda: _unfinished(app) == 0, 600)
        return WARM_UP_JOBS / (time.monotonic() - since)

    def _feed(self, app: Holdfast, pid: int, seconds: float) -> None:
        over = threading.Event()
        watching = threading.Thread(target=self._watch, args=(app, pid, over))
        watching.start()
        try:
            since, fed = time.monotonic(), 0
            while (passed := time.monotonic() - since) < seconds:
                due = int(self.rate * passed) - fed
                if due > 0:
                    _enqueue(app, due)
                    fed += due
                time.sleep(FEED_INTERVAL_S)
        finally:
            over.set()
            watching.join()

    def _watch(self, app: Holdfast, pid: int, over: threading.Event) -> None:
        """Sample through a separate connection."""
        with closing(make_app(self._url, 60)) as own:
            since = time.monotonic()
            while not over.is_set():
                began = int(time.time() * 1e6)
                probes = own.registry.get("probe")
                for number in range(int(SAMPLE_INTERVAL_S / 0.25)):
                    probes.enqueue(number)
                    if over.wait(0.25):
                        return
                self.samples.append(self._look(own, pid, began, time.monotonic() - since))
                self._log_progress(self.samples[-1])

    def _look(self, app: Holdfast, pid: int, began: int, at: float) -> Sample:
        waits = sorted(row[0] / 1000 for row in fetch(app, PROBES % began)) or [0.0]
        rows = sum(
            fetch(app, f"select count(*) from {{}}{table}")[0][0] for table in ("runs", "history", "checkpoints")
        )
        return Sample(
            round(at, 1),
            _memory(pid),
            round(statistics.median(waits), 2),
            round(waits[-1], 2),
            rows,
            _unfinished(app),
            round(self._size(app), 1),
        )

    def _log_progress(self, sample: Sample) -> None:
        if len(self.samples) % 6 == 1:
            self._log(", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in asdict(sample).items()))


def _enqueue(app: Holdfast, count: int) -> None:
    noop, steps = app.registry.get("noop"), app.registry.get("steps")
    for first in range(0, count, 1000):
        numbers = range(first, min(count, first + 1000))
        app.enqueue_many([(steps if number % STEPS_EVERY == 0 else noop).request(number) for number in numbers])


def _unfinished(app: Holdfast) -> int:
    return int(fetch(app, "select count(*) from {}runs where finished_at is null")[0][0])


def _memory(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


@dataclass(frozen=True)
class SoakResult:
    """Each metric early (after the first fifth) and at the end, and those that grew too much."""

    figures: dict[str, tuple[float, float]]
    wrong: list[str]


def judge(samples: Sequence[Sample]) -> SoakResult:
    """Compare the last third with the third after the warm-up, which is the first fifth.

    Tables, which the database vacuums at its own pace, are compared with the third before the last.
    """
    settled = list(samples[len(samples) // 5 :])
    third = max(len(samples) // 3, 1)
    early, before, late = settled[:third], samples[-2 * third : -third], samples[-third:]
    if len(samples) < 6:
        return SoakResult({}, ["too short to judge: use more --minutes"])

    def both(read: Callable[[Sample], float], fold: Callable[[list[float]], float]) -> tuple[float, float]:
        base = before if fold is max else early
        return fold([read(sample) for sample in base]), fold([read(sample) for sample in late])

    figures = {
        "memory of the worker, MB": both(lambda sample: sample.memory, statistics.median),
        "latency of a claim, ms, median": both(lambda sample: sample.latency, statistics.median),
        "latency of a claim, ms, slowest": both(lambda sample: sample.slow_latency, statistics.median),
        "rows": both(lambda sample: sample.rows, max),
        "unfinished runs": both(lambda sample: sample.unfinished, statistics.median),
        "size of the database, MB": both(lambda sample: sample.megabytes, max),
    }
    allowed = {
        "memory of the worker, MB": figures["memory of the worker, MB"][0] * MAX_MEMORY_GROWTH,
        "latency of a claim, ms, median": max(
            figures["latency of a claim, ms, median"][0] * MAX_LATENCY_GROWTH, IGNORED_LATENCY_MS
        ),
        "rows": figures["rows"][0] * MAX_TABLE_GROWTH,
        "size of the database, MB": figures["size of the database, MB"][0] * MAX_TABLE_GROWTH,
    }
    wrong = [
        f"{name} grew from {figures[name][0]:,.1f} to {figures[name][1]:,.1f}, more than {most:,.1f}"
        for name, most in allowed.items()
        if figures[name][1] > most
    ]
    return SoakResult(figures, wrong)


def soak(postgres: bool, seconds: float, folder: Path, json_to: str | None, log: Callable[[str], None]) -> int:
    """Run the soak test, print its result and return the exit code."""
    if postgres:
        with PostgresServer(fsync=True, shared_buffers="256MB") as server:
            taken = Soak(server.create_database("soak"), _size_of_postgres, folder, log)
            taken.run(seconds)
    else:
        file = folder / "soak.db"
        taken = Soak(f"sqlite:///{file}", lambda _: file.stat().st_size / 2**20, folder, log)
        taken.run(seconds)
    result = judge(taken.samples)
    _log_progress(taken, result, "PostgreSQL" if postgres else "SQLite", json_to)
    return 1 if result.wrong else 0


def _size_of_postgres(app: Holdfast) -> float:
    return float(fetch(app, "select pg_database_size(current_database())")[0][0]) / 2**20


def _log_progress(taken: Soak, result: SoakResult, database: str, json_to: str | None) -> None:
    data: dict[str, Any] = {
        "database": database,
        "runs a second": round(taken.rate),
        "of at most": round(taken.most),
        "figures": result.figures,
        "wrong": result.wrong,
        "samples": [asdict(sample) for sample in taken.samples],
    }
    if json_to not in (None, "-"):
        Path(str(json_to)).write_text(json.dumps(data, indent=2) + "\n")
    if json_to == "-":
        print(json.dumps(data, indent=2))  # noqa: T201
        return
    print(f"{database}: {taken.rate:,.0f} runs/s, half of a worker's maximum here")  # noqa: T201
    for name, (early, late) in result.figures.items():
        print(f"  {name:<34} {early:>12,.1f} -> {late:>12,.1f}")  # noqa: T201
    for what in result.wrong:
        print(f"  wrong: {what}")  # noqa: T201
    print("verdict: " + ("BAD" if result.wrong else "good"))  # noqa: T201
