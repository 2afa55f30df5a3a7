"""The demo's scenario: enqueue jobs, start workers, kill one with -9 while it is busy, watch the recovery."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from holdfast.cli.demo import Interrupt
from holdfast.cli.demo.state import DemoResult, DemoState, Ledger, WorkerKill, WorkerView
from holdfast.engine.processes.supervisor import WorkerProcess
from holdfast.model.run import RunInfo

WORKERS = 3
CONCURRENCY = 3
LEASE_S = 2.0
GRACE_S = 3.0
KILL_AFTER_SHARE = 0.35  # of the jobs are done
FRAME_S = 0.08
TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 10.0

Draw = Callable[[], None]


class DemoFailed(click.ClickException):
    """The demo couldn't finish."""


class Scenario:
    """One run of the demo. `draw` is called after each change of the state."""

    def __init__(self, folder: Path, state: DemoState, draw: Draw, interrupt: Interrupt) -> None:
        from holdfast.cli.demo.app import app, invoice

        self._app = app
        self._task = invoice
        self._folder = folder
        self._state = state
        self._draw = draw
        self._interrupt = interrupt
        self._ledger = Ledger(folder / "ledger")
        self._children: list[WorkerProcess] = []
        self._numbers: dict[Any, int] = {}
        self._infos: list[RunInfo[Any]] = []

    def run(self) -> DemoResult:
        self._enqueue(self._state.jobs)
        with self._running_workers():
            self._wait_for(lambda: all(view.state == "working" for view in self._state.workers))
            self._state.add_event(f"{WORKERS} workers running, {CONCURRENCY} invoices at a time")
            kill = self._kill(self._victim())
            recovery_s = self._watch_recovery(kill)
            self._wait_for(self._all_ended)
            self._state.add_event("all invoices done; stopping the workers")
        return self._count(kill, recovery_s)

    def _enqueue(self, jobs: int) -> None:
        began = time.monotonic()
        first = len(self._numbers) + 1
        handles = self._task.enqueue_many([(number,) for number in range(first, first + jobs)])
        took = (time.monotonic() - began) * 1000
        self._numbers |= {handle.id: number for number, handle in enumerate(handles, first)}
        self._state.jobs = len(self._numbers)
        self._state.add_event(f"{jobs} invoices enqueued in {took:.0f} ms")
        self._refresh()

    # Workers

    @contextmanager
    def _running_workers(self) -> Iterator[None]:
        """Run `holdfast worker` processes for the duration of the block; they never outlive it."""
        settings = [f"--concurrency={CONCURRENCY}", f"--lease={LEASE_S}", f"--grace={GRACE_S}", "--verbose"]
        command = [sys.executable, "-m", "holdfast.cli", "--app=holdfast.cli.demo.app:app", "worker", *settings]
        try:
            for number in range(1, WORKERS + 1):
                with self._interrupt.deferred():  # a signal must not leave an unknown child
                    child = WorkerProcess(number, command, self._write_log)
                    self._children.append(child)
                self._state.workers.append(WorkerView(number, child.pid))
            yield
            self._stop()
        finally:
            self.kill_all()

    def _write_log(self, number: int, lines: list[bytes]) -> None:
        with (self._folder / f"worker-{number}.log").open("ab") as file:
            file.writelines(line + b"\n" for line in lines)

    def _stop(self) -> None:
        alive = [child for child in self._children if self._view(child).state != "killed"]
        for child in alive:
            child.request_stop()
        deadline = time.monotonic() + STOP_TIMEOUT_S
        for child in alive:
            while child.exit_code() is None and time.monotonic() < deadline:
                self._read_output()
                time.sleep(0.01)
            self._view(child).state = "stopped"
        self._draw()

    def kill_all(self) -> None:
        """Kill all remaining workers."""
        for child in self._children:
            if child.exit_code() is None:
                child.signal_group(signal.SIGKILL)
        for child in self._children:
            while child.exit_code() is None:
                time.sleep(0.005)
            child.output.close()
        self._children = []

    def _view(self, child: WorkerProcess) -> WorkerView:
        return self._state.workers[child.number - 1]

    def _read_output(self) -> None:
        for child in self._children:
            child.output.read_all()

    # State

    def _wait_for(self, reached: Callable[[], Any]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            self._refresh()
            if reached():
                return
            self._check_workers(deadline)
            time.sleep(FRAME_S)

    def _check_workers(self, deadline: float) -> None:
        for child in self._children:
            if self._view(child).state != "killed" and child.exit_code() is not None:
                child.output.read_all()
                raise DemoFailed(f"worker {child.number} exited unexpectedly: {self._last_log_line(child.number)}")
        if time.monotonic() > deadline:
            raise DemoFailed(f"the demo timed out; last log line of worker 1: {self._last_log_line(1)}")

    def _last_log_line(self, number: int) -> str:
        log = self._folder / f"worker-{number}.log"
        lines = log.read_text(errors="replace").split("\n") if log.exists() else []
        return next((line for line in reversed(lines) if line.strip()), "nothing")

    def _refresh(self) -> None:
        """Update the state from the ledger and the database, and draw it."""
        self._ledger.read()
        self._read_output()
        self._infos = [info for info in self._all_runs() if info.id in self._numbers]
        self._state.states = Counter(info.state for info in self._infos)
        for child in self._children:
            view = self._view(child)
            view.done = self._ledger.done_by[view.pid]
            if view.state in ("starting", "working"):
                view.state = "working" if child.ready else "starting"
                view.claimed = sorted(self._ledger.claimed.get(view.pid, []))
        self._draw()

    def _all_runs(self) -> Iterator[RunInfo[Any]]:
        page = self._app.runs(limit=1000)
        yield from page
        while page.after is not None:
            page = self._app.runs(limit=1000, after=page.after)
            yield from page

    def _all_ended(self) -> bool:
        return sum(self._state.states.values()) == self._state.jobs and all(info.final for info in self._infos)

    # The kill

    def _claimed_by(self, child: WorkerProcess) -> frozenset[int]:
        """Return the invoices that a worker has claimed, according to the database."""
        mark = f":{child.pid}:"
        return frozenset(self._numbers[i.id] for i in self._infos if i.state == "running" and mark in (i.worker or ""))

    def _victim(self) -> WorkerProcess:
        """Choose a busy worker once the work is under way. If all jobs finish before one is seen busy, enqueue more."""
        jobs = self._state.jobs
        while True:
            self._wait_for(lambda: self._all_ended() or (self._is_under_way() and self._busiest()))
            if (busiest := self._busiest()) is not None:
                return busiest
            self._enqueue(jobs)

    def _is_under_way(self) -> bool:
        return self._state.states["done"] >= self._state.jobs * KILL_AFTER_SHARE

    def _busiest(self) -> WorkerProcess | None:
        """Return the worker with the most claimed invoices, if any."""
        held = {child.number: len(self._claimed_by(child)) for child in self._children}
        best = max(self._children, key=lambda child: held[child.number])
        return best if held[best.number] else None

    def _kill(self, child: WorkerProcess) -> WorkerKill:
        os.kill(child.pid, signal.SIGKILL)
        at = time.monotonic()
        view = self._view(child)
        view.state = "killed"
        while child.exit_code() is None:
            time.sleep(0.005)
        self._refresh()
        held = self._claimed_by(child)
        view.claimed = sorted(held)
        self._state.recovered = held
        finished = frozenset(self._numbers[info.id] for info in self._infos if info.state == "done")
        self._state.add_event(f"worker {child.number} killed (kill -9) while running {listed(held)}")
        self._draw()
        return WorkerKill(child.number, at, held, finished)

    def _watch_recovery(self, kill: WorkerKill) -> float | None:
        """Wait until other workers have recovered and finished the killed worker's invoices; return the recovery time.

        A result that the worker sent right before its death may still be committed; that invoice isn't recovered.
        """
        dead = self._children[kill.worker - 1]
        self._wait_for(lambda: not self._claimed_by(dead))
        took = time.monotonic() - kill.at
        self._view(dead).claimed = []
        if not (taken := kill.held - self._done_at_once()):
            return None
        self._state.add_event(f"its lease expired: {listed(taken)} ready again")
        self._wait_for(lambda: taken <= self._done_by_others(dead))
        self._state.add_event(f"{listed(taken)} done by other workers")
        return took

    def _done_at_once(self) -> frozenset[int]:
        """Return the invoices that were done in their first attempt."""
        return frozenset(self._numbers[i.id] for i in self._infos if i.state == "done" and i.attempt == 1)

    def _done_by_others(self, dead: WorkerProcess) -> set[int]:
        return {number for number, pid in self._ledger.done_last_by.items() if pid != dead.pid}

    def _count(self, kill: WorkerKill, recovery_s: float | None) -> DemoResult:
        self._refresh()
        return DemoResult(
            jobs=self._state.jobs,
            kill=kill,
            lease=LEASE_S,
            recovery_s=recovery_s,
            done_by_database=frozenset(self._numbers[info.id] for info in self._infos if info.state == "done"),
            done_by_ledger=frozenset(self._ledger.done),
            begun_again=frozenset(number for number, times in self._ledger.begun.items() if times > 1),
        )


def listed(numbers: Any) -> str:
    known = sorted(numbers)
    return ", ".join(map(str, known)) or "nothing"
