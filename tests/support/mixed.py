"""The mixed load: workers, runs of all kinds including culprits, the outcome of each, and statistics.

A *root* is a run that the test enqueues; its children and nodes are its descendants.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from holdfast import Holdfast
from holdfast.errors import StoreUnavailable
from tests.support.charges import GIVEN_BACK, read_charges
from tests.support.culprits import CULPRITS, HANGS, HARMS, kind_of, kinds_of
from tests.support.history_queries import fetch
from tests.support.mixed_tasks import CYCLE, IN_A_ROW, KINDS, LONGEST_WORK_S, RUNS_PER_CYCLE, Line, Mixed
from tests.support.session_processes import running
from tests.support.wait_until import wait_until

ROOT = Path(__file__).resolve().parents[2]
APP = "tests.support.mixed_worker:app"
HARM_LEASES = 1.5
HANG_S = 600.0
LATE_LEASES = 2
POLL_INTERVAL_S = 0.1
BLOCKED_S = 1.0
STUCK_S = 60.0
T = TypeVar("T")


@dataclass(frozen=True)
class Scale:
    """The size of the load. `culprits`: how many runs do each kind of harm; `rate`: runs per second."""

    runs: int
    culprits: int
    lease: float
    rate: float
    concurrency: int
    seed: int = 1

    def marks(self) -> list[str]:
        """Return the marks of all roots in the order of their enqueue, with culprits at random positions."""
        source = random.Random(self.seed)
        kinds = [kind for _ in range(self.runs // RUNS_PER_CYCLE) for kind in source.sample(CYCLE, len(CYCLE))]
        for harm in HARMS:
            of_harm = kinds_of(harm)
            for number in range(self.culprits):
                kinds.insert(source.randrange(len(kinds)), of_harm[(self.seed + number) % len(of_harm)])
        return [f"{kind}-{number}" for number, kind in enumerate(kinds)]


class Fleet:
    """A number of worker processes, divided among supervisors; without supervisors, the fleet restarts them itself."""

    def __init__(self, folder: Path, url: str, scale: Scale, workers: int, supervisors: int = 0) -> None:
        self._folder = folder
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._env = os.environ | {"HOLDFAST_URL": url, "LEDGER": str(folder / "ledger"), "PYTHONPATH": path}
        options = [f"--lease={scale.lease}", f"--concurrency={scale.concurrency}", "--grace=1"]
        options += [f"--processes={workers // supervisors}"] if supervisors else []
        self._command = [sys.executable, "-m", "holdfast.cli", "worker", f"--app={APP}", *options]
        self._supervised = bool(supervisors)
        self._count = supervisors or workers
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self._logs: list[Path] = []
        self._restarts = 0
        self._stopping = threading.Event()
        self._restarter = threading.Thread(target=self._restart_exited, daemon=True)

    def start(self) -> None:
        self._processes = [self._start_one() for _ in range(self._count)]
        self._restarter.start()
        wait_until(lambda: self.log.count("worker started") >= self._workers, 120, "all workers have started")

    def _start_one(self) -> subprocess.Popen[bytes]:
        self._logs.append(self._folder / f"worker{len(self._logs)}.log")
        with self._logs[-1].open("wb") as output:
            return subprocess.Popen(
                self._command, env=self._env, cwd=self._folder, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def _restart_exited(self) -> None:
        """Restart processes that have exited, as a service manager does."""
        while not self._stopping.wait(0.05):
            for at, process in enumerate(self._processes):
                if process.poll() is not None:
                    self._restarts += 1
                    self._processes[at] = self._start_one()

    @property
    def log(self) -> str:
        return "\n".join(log.read_text(errors="replace") for log in self._logs)

    @property
    def restarts(self) -> int:
        return self._restarts + len(re.findall(r"worker process ended ", self.log)) * self._supervised

    def close(self) -> None:
        """Kill all processes."""
        self._stopping.set()
        if self._restarter.is_alive():
            self._restarter.join()
        for process in self._processes:
            for pid in running(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


@dataclass
class Feeder:
    """Enqueues the roots at the rate of the scale, and repeats each enqueue until it is acknowledged."""

    mixed: Mixed
    scale: Scale
    sent: dict[str, float] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    blocked_until: list[float] = field(default_factory=list)
    """When the database accepted a write again that it hadn't accepted for a while."""

    def feed(self) -> None:
        """Enqueue all roots. A second thread submits the graphs, which can't be enqueued in bulk."""
        marks = self.scale.marks()
        roots_per_second = self.scale.rate * len(marks) / self.scale.runs
        when = {mark: at / roots_per_second for at, mark in enumerate(marks)}
        graphs = [mark for mark in marks if kind_of(mark) == "graph"]
        others = [mark for mark in marks if kind_of(mark) != "graph"]
        since = time.monotonic()
        threads = ThreadPoolExecutor(1)
        submitted = threads.submit(self._submit, graphs, when, since)
        while others:
            due = [mark for mark in others if since + when[mark] <= time.monotonic()]
            others = others[len(due) :]
            if due:
                self._enqueue(due)
            time.sleep(POLL_INTERVAL_S)
        submitted.result()
        threads.shutdown()

    def _enqueue(self, marks: Sequence[str]) -> None:
        requests = [self.mixed.request(kind_of(mark), mark, self._seconds(mark)) for mark in marks]
        runs = self._write(lambda: self.mixed.app.enqueue_many(requests))
        for mark, run in zip(marks, runs, strict=True):
            self.sent[mark], self.ids[str(run.id)] = time.monotonic(), mark

    def _submit(self, marks: Sequence[str], when: dict[str, float], since: float) -> None:
        for mark in marks:
            time.sleep(max(since + when[mark] - time.monotonic(), 0))
            run = self._write(lambda mark=mark: self.mixed.app.submit(self.mixed.graph(mark)))
            self.sent[mark], self.ids[str(run.id)] = time.monotonic(), mark

    def _write(self, act: Callable[[], T]) -> T:
        began = time.monotonic()
        result = _retry_while_busy(act)
        if time.monotonic() - began > BLOCKED_S:
            self.blocked_until.append(time.monotonic())
        return result

    def _seconds(self, mark: str) -> float:
        """Return how long its harm lasts."""
        culprit = CULPRITS.get(kind_of(mark))
        return HANG_S if culprit is not None and culprit.harm == HANGS else HARM_LEASES * self.scale.lease


def ends_of_blocks(commits: Sequence[float]) -> list[float]:
    """Return when a program that writes again and again could write after a while without a commit."""
    return [after for before, after in itertools.pairwise(commits) if after - before > BLOCKED_S]


class CpuPressure:
    """For which share of the time some process of the machine waited for a CPU: near 1, lateness is no defect."""

    def __init__(self) -> None:
        self._began, self._waited_s = time.monotonic(), self._read()

    @staticmethod
    def _read() -> float:
        """Return the seconds since the start of the machine in which a process waited; 0 if the kernel doesn't say."""
        try:
            return int(Path("/proc/pressure/cpu").read_text().split("total=")[1].split()[0]) / 1e6
        except (OSError, IndexError):
            return 0.0

    def share(self) -> float:
        return (self._read() - self._waited_s) / (time.monotonic() - self._began)


def _retry_while_busy(act: Callable[[], T]) -> T:
    """Repeat a call while the database is busy. Roots have idempotency keys, so a repetition creates no second one."""
    deadline = time.monotonic() + STUCK_S
    while True:
        try:
            return act()
        except StoreUnavailable:
            if time.monotonic() > deadline:
                raise


UNFINISHED = "select count(*) from {}runs where finished_at is null"
RUNS = "select id, root, state, error from {}runs"
RETURNED = f"select run, session, at, kind from {{}}history where kind in {GIVEN_BACK} and session is not null"


def wait_for_end(app: Holdfast, fleet: Fleet) -> None:
    """Wait until all runs have ended; fail if none has ended for a while."""
    before, moved = -1, time.monotonic()
    while (left := fetch(app, UNFINISHED)[0][0]) and time.monotonic() < moved + STUCK_S:
        if left != before:
            before, moved = left, time.monotonic()
        time.sleep(POLL_INTERVAL_S)
    states = fetch(app, "select state, held, count(*) from {}runs where finished_at is null group by state, held")
    assert not left, f"nothing has ended for {STUCK_S:g} s; open: {states}\n{fleet.log[-5000:]}"


class Outcome:
    """What the ledger and the database contain after all runs have ended."""

    def __init__(self, app: Holdfast, feeder: Feeder, lines: Sequence[Line], scale: Scale) -> None:
        offset = time.time() - time.monotonic()
        self._scale = scale
        self._sent = feeder.sent
        self.blocked_until = feeder.blocked_until
        self.cpu_pressure = 0.0
        self.lines = lines
        rows = fetch(app, RUNS)
        self.marks = {str(id): feeder.ids.get(str(id)) or feeder.ids[str(root)] for id, root, _, _ in rows}
        self.ends = {str(id): (state, error) for id, _, state, error in rows}
        self.roots = {mark: id for id, mark in feeder.ids.items()}
        self.charged = Counter(self.marks[charge.run] for charge in read_charges(app))
        self.returned = [
            (self.marks[str(run)], str(session), at / 1e6 - offset, kind)
            for run, session, at, kind in fetch(app, RETURNED)
        ]

    def innocent(self, mark: str) -> bool:
        return kind_of(mark) in KINDS

    def failed_innocents(self) -> dict[str, Any]:
        wrong = {id: end for id, end in self.ends.items() if end[0] != "done" and self.innocent(self.marks[id])}
        return {f"{self.marks[id]} {id}": end for id, end in wrong.items()}

    def charged_innocents(self) -> dict[str, int]:
        return {mark: count for mark, count in self.charged.items() if self.innocent(mark)}

    def missing_effects(self) -> list[str]:
        """Return expected effects of innocent roots that are missing in the ledger."""
        did = {(line.mark, line.what) for line in self.lines if line.kind in ("did", "end")}
        wanted = [(mark, what) for mark in self.roots if self.innocent(mark) for what in (*KINDS[kind_of(mark)], "-")]
        return [f"{what} of {mark}" for mark, what in wanted if (mark, what) not in did]

    def odd_culprits(self) -> dict[str, Any]:
        """Return culprits that didn't fail by their own policy."""
        found = {}
        for mark, id in self.roots.items():
            state, error = self.ends[id]
            if not self.innocent(mark) and (
                state != "failed" or not any(f'"code":"{code}"' in error for code in CULPRITS[kind_of(mark)].codes)
            ):
                found[mark] = (state, error)
        return found

    def latencies(self) -> dict[str, list[float]]:
        """Return the seconds from the enqueue to the last effect, by kind."""
        found: defaultdict[str, list[float]] = defaultdict(list)
        for mark, at in self._last_ends().items():
            found[kind_of(mark)].append(at - self._sent[mark])
        return {kind: sorted(times) for kind, times in found.items()}

    def _last_ends(self) -> dict[str, float]:
        return {line.mark: line.at for line in self.lines if line.kind == "end"}

    def lateness(self) -> dict[str, float]:
        """Return for each innocent root how many seconds it ended after the earliest possible time.

        That time is the duration of its work after its enqueue, after the last time that a culprit harmed a worker that
        had claimed one of its runs, or after the last time that the database accepted no writes: a process that holds
        the GIL may hold SQLite's write lock too, in a thread that can't go on.
        """
        harms: defaultdict[int, list[float]] = defaultdict(list)
        for line in self.lines:
            if line.kind == "harm":
                harms[line.pid].append(line.at)
        since = dict(self._sent)
        for mark, session, at, _ in self.returned:
            hits = [harm for harm in harms[int(session.split(":")[1])] if harm <= at]
            since[mark] = max([since[mark], *hits[-1:]])
        work = {kind: count * LONGEST_WORK_S for kind, count in IN_A_ROW.items()}
        found = {}
        for mark, at in self._last_ends().items():
            possible = max([since[mark], *(until for until in self.blocked_until if until < at)])
            found[mark] = at - possible - work[kind_of(mark)]
        return found

    def late(self) -> dict[str, float]:
        """Return the roots that ended more than two leases after the earliest possible time."""
        most = LATE_LEASES * self._scale.lease
        return {mark: round(seconds, 2) for mark, seconds in self.lateness().items() if seconds > most}

    def story(self, mark: str) -> str:
        """Return what delayed a root, with the seconds since its enqueue."""
        sent, end = self._sent[mark], self._last_ends()[mark]
        delays = [(at, kind) for returned, _, at, kind in self.returned if returned == mark]
        delays += [(until, "database accepted writes again") for until in self.blocked_until]
        known = [f"{what} {at - sent:.1f}" for at, what in sorted(delays) if sent - BLOCKED_S < at < end]
        return ", ".join([*known, f"ended {end - sent:.1f}"])


def figures(outcome: Outcome, fleet: Fleet, seconds: float, title: str) -> str:
    """Return the statistics as text."""
    harm = Counter(CULPRITS[line.what].harm for line in outcome.lines if line.kind == "harm")
    sessions = Counter(kind for _, kind in {(session, kind) for _, session, _, kind in outcome.returned})
    returned = Counter(kind for *_, kind in outcome.returned)
    lateness = sorted(outcome.lateness().values())
    lines = [
        f"{title}: {len(outcome.ends)} runs of {len(outcome.roots)} roots in {seconds:.0f} s",
        f"  harm: {', '.join(f'{name} {count}' for name, count in harm.items())}",
        f"  workers restarted {fleet.restarts}; runs returned {dict(returned)} by sessions {dict(sessions)}",
        f"  database without writes for more than {BLOCKED_S:g} s: {len(outcome.blocked_until)} times",
        f"  charged: culprits {sum(outcome.charged.values())}, innocents {sum(outcome.charged_innocents().values())}",
        f"  some process waited for a CPU in {outcome.cpu_pressure:.0%} of the time",
        f"  lateness: {_spread(lateness)}; more than two leases late: {len(outcome.late())}",
    ]
    lines += [f"  {kind:<8} latency {_spread(times)}" for kind, times in sorted(outcome.latencies().items())]
    lines += [f"  late by {seconds} s: {mark}: {outcome.story(mark)}" for mark, seconds in outcome.late().items()]
    return "\n".join(lines)


def _spread(times: Sequence[float]) -> str:
    picks = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    return " ".join(
        f"{name} {times[min(len(times) - 1, int(part * len(times)))]:.2f} s" for name, part in picks.items()
    )


@contextmanager
def started(fleet: Fleet) -> Iterator[None]:
    try:
        fleet.start()
        yield
    finally:
        fleet.close()
