"""The demo itself: enqueue, start workers, kill one with -9 when its hands are full, see what becomes of its work."""

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
LEASE = 2.0
GRACE = 3.0
KILL_AFTER = 0.35  # of the jobs are done
FRAME = 0.08
LONGEST = 90.0
STOP_SECONDS = 10.0

Draw = Callable[[], None]


class DemoFailed(click.ClickException):
    """The demo couldn't be played to its end."""


class Scenario:
    """One performance. `draw` is called after each change of the scene."""

    def __init__(self, folder: Path, scene: DemoState, draw: Draw, interrupt: Interrupt) -> None:
        from holdfast.cli.demo.app import app, invoice

        self._app = app
        self._task = invoice
        self._folder = folder
        self._scene = scene
        self._draw = draw
        self._interrupt = interrupt
        self._ledger = Ledger(folder / "ledger")
        self._children: list[WorkerProcess] = []
        self._numbers: dict[Any, int] = {}
        self._infos: list[RunInfo[Any]] = []

    def perform(self) -> DemoResult:
        """From the first job to the last; what it came to."""
        self._enqueue(self._scene.jobs)
        with self._working():
            self._wait_for(lambda: all(figure.state == "working" for figure in self._scene.figures))
            self._scene.tell(f"{WORKERS} workers at work, {CONCURRENCY} invoices at a time")
            kill = self._kill(self._victim())
            takeover = self._watch_takeover(kill)
            self._wait_for(self._all_ended)
            self._scene.tell("all invoices done; the workers are told to stop")
        return self._count(kill, takeover)

    def _enqueue(self, jobs: int) -> None:
        began = time.monotonic()
        first = len(self._numbers) + 1
        handles = self._task.enqueue_many([(number,) for number in range(first, first + jobs)])
        took = (time.monotonic() - began) * 1000
        self._numbers |= {handle.id: number for number, handle in enumerate(handles, first)}
        self._scene.jobs = len(self._numbers)
        self._scene.tell(f"{jobs} invoices enqueued in {took:.0f} ms")
        self._look()

    # Workers

    @contextmanager
    def _working(self) -> Iterator[None]:
        """Real workers, `holdfast worker …`, for the length of the block; they end with us, however we end."""
        settings = [f"--concurrency={CONCURRENCY}", f"--lease={LEASE}", f"--grace={GRACE}", "--verbose"]
        command = [sys.executable, "-m", "holdfast.cli", "--app=holdfast.cli.demo.app:app", "worker", *settings]
        try:
            for number in range(1, WORKERS + 1):
                with self._interrupt.held():  # so that none is started that we don't know of
                    child = WorkerProcess(number, command, self._write_log)
                    self._children.append(child)
                self._scene.figures.append(WorkerView(number, child.pid))
            yield
            self._stop()
        finally:
            self.kill_all()

    def _write_log(self, number: int, lines: list[bytes]) -> None:
        with (self._folder / f"worker-{number}.log").open("ab") as file:
            file.writelines(line + b"\n" for line in lines)

    def _stop(self) -> None:
        alive = [child for child in self._children if self._figure(child).state != "killed"]
        for child in alive:
            child.request_stop()
        deadline = time.monotonic() + STOP_SECONDS
        for child in alive:
            while child.exit_code() is None and time.monotonic() < deadline:
                self._read_output()
                time.sleep(0.01)
            self._figure(child).state = "stopped"
        self._draw()

    def kill_all(self) -> None:
        """Leave nothing running, whatever happened."""
        for child in self._children:
            if child.exit_code() is None:
                child.signal_group(signal.SIGKILL)
        for child in self._children:
            while child.exit_code() is None:
                time.sleep(0.005)
            child.output.close()
        self._children = []

    def _figure(self, child: WorkerProcess) -> WorkerView:
        return self._scene.figures[child.number - 1]

    def _read_output(self) -> None:
        for child in self._children:
            child.output.read_all()

    # Watching

    def _wait_for(self, reached: Callable[[], Any]) -> None:
        deadline = time.monotonic() + LONGEST
        while True:
            self._look()
            if reached():
                return
            self._refuse_surprises(deadline)
            time.sleep(FRAME)

    def _refuse_surprises(self, deadline: float) -> None:
        for child in self._children:
            if self._figure(child).state != "killed" and child.exit_code() is not None:
                child.output.read_all()
                raise DemoFailed(f"worker {child.number} ended by itself: {self._last_words(child.number)}")
        if time.monotonic() > deadline:
            raise DemoFailed(f"the demo got stuck; worker 1 said last: {self._last_words(1)}")

    def _last_words(self, number: int) -> str:
        log = self._folder / f"worker-{number}.log"
        lines = log.read_text(errors="replace").split("\n") if log.exists() else []
        return next((line for line in reversed(lines) if line.strip()), "nothing")

    def _look(self) -> None:
        """Bring the scene up to date, from the ledger and from the database, and draw it."""
        self._ledger.read()
        self._read_output()
        self._infos = [info for info in self._all_runs() if info.id in self._numbers]
        self._scene.states = Counter(info.state for info in self._infos)
        for child in self._children:
            figure = self._figure(child)
            figure.done = self._ledger.done_by[figure.pid]
            if figure.state in ("starting", "working"):
                figure.state = "working" if child.ready else "starting"
                figure.in_hand = sorted(self._ledger.in_hand.get(figure.pid, []))
        self._draw()

    def _all_runs(self) -> Iterator[RunInfo[Any]]:
        page = self._app.runs(limit=1000)
        yield from page
        while page.after is not None:
            page = self._app.runs(limit=1000, after=page.after)
            yield from page

    def _all_ended(self) -> bool:
        return sum(self._scene.states.values()) == self._scene.jobs and all(info.final for info in self._infos)

    # The kill

    def _held_by(self, child: WorkerProcess) -> frozenset[int]:
        """What the database says is in the hands of a worker."""
        mark = f":{child.pid}:"
        return frozenset(self._numbers[i.id] for i in self._infos if i.state == "running" and mark in (i.worker or ""))

    def _victim(self) -> WorkerProcess:
        """A worker whose hands are full in the middle of the work. Where all is done before one is seen, on a machine
        that has much else to do, there is more work."""
        jobs = self._scene.jobs
        while True:
            self._wait_for(lambda: self._all_ended() or (self._is_under_way() and self._busiest()))
            if (busiest := self._busiest()) is not None:
                return busiest
            self._enqueue(jobs)

    def _is_under_way(self) -> bool:
        return self._scene.states["done"] >= self._scene.jobs * KILL_AFTER

    def _busiest(self) -> WorkerProcess | None:
        """The worker with the most in hand, if any has something."""
        held = {child.number: len(self._held_by(child)) for child in self._children}
        best = max(self._children, key=lambda child: held[child.number])
        return best if held[best.number] else None

    def _kill(self, child: WorkerProcess) -> WorkerKill:
        os.kill(child.pid, signal.SIGKILL)
        at = time.monotonic()
        figure = self._figure(child)
        figure.state = "killed"
        while child.exit_code() is None:
            time.sleep(0.005)
        self._look()
        held = self._held_by(child)
        figure.in_hand = sorted(held)
        self._scene.taken_from_the_dead = held
        finished = frozenset(self._numbers[info.id] for info in self._infos if info.state == "done")
        self._scene.tell(f"worker {child.number} killed (kill -9) holding {listed(held)}")
        self._draw()
        return WorkerKill(child.number, at, held, finished)

    def _watch_takeover(self, kill: WorkerKill) -> float | None:
        """Until nothing is in the hands of the dead, and others have done it; how long the first took. What the dead
        had sent off before it died isn't theirs to do: the database may take it in after the kill."""
        dead = self._children[kill.worker - 1]
        self._wait_for(lambda: not self._held_by(dead))
        took = time.monotonic() - kill.at
        self._figure(dead).in_hand = []
        if not (taken := kill.held - self._done_at_once()):
            return None
        self._scene.tell(f"its lease is over: {listed(taken)} ready again")
        self._wait_for(lambda: taken <= self._done_by_others(dead))
        self._scene.tell(f"{listed(taken)} done by others")
        return took

    def _done_at_once(self) -> frozenset[int]:
        """What the database says was done by the first who had it."""
        return frozenset(self._numbers[i.id] for i in self._infos if i.state == "done" and i.attempt == 1)

    def _done_by_others(self, dead: WorkerProcess) -> set[int]:
        return {number for number, pid in self._ledger.done_last_by.items() if pid != dead.pid}

    def _count(self, kill: WorkerKill, takeover: float | None) -> DemoResult:
        self._look()
        return DemoResult(
            jobs=self._scene.jobs,
            kill=kill,
            lease=LEASE,
            takeover=takeover,
            done_by_database=frozenset(self._numbers[info.id] for info in self._infos if info.state == "done"),
            done_by_ledger=frozenset(self._ledger.done),
            begun_again=frozenset(number for number, times in self._ledger.begun.items() if times > 1),
        )


def listed(numbers: Any) -> str:
    """Some invoices by number."""
    known = sorted(numbers)
    return ", ".join(map(str, known)) or "nothing"
