"""Starts and ends the processes of a measurement. None outlives the block that it was started in, nor this process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.measure import Failed, note

Command: TypeAlias = Sequence[str]

ROOT = Path(__file__).resolve().parents[1]
STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class WorkerSetting:
    """How the workers of a measurement are started."""

    workers: int = 1
    concurrency: int = 100
    queues: Sequence[str] = ()

    def commands(self, url: str, scratch: Path) -> list[Command]:
        queues = [part for name in self.queues for part in ("--queue", name)]
        return [ours("work", url, scratch, "--concurrency", str(self.concurrency), *queues)] * self.workers


def ours(verb: str, url: str, scratch: Path, *more: str) -> Command:
    """The command of a process of ours."""
    return [sys.executable, "-m", "benchmarks.process", verb, "--url", url, "--scratch", str(scratch), *more]


def start(command: Command, scratch: Path, name: str) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own: Ctrl-C is for us, and we pass it on in our way. It ends by itself when
    its input does, that is when we are no more."""
    with (scratch / f"{name}.log").open("wb") as log:
        return subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True
        )


def end(process: subprocess.Popen[bytes], patience: float = STOP_SECONDS) -> None:
    """Wait for a process that was told to stop; kill it if it doesn't."""
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        note(f"process {process.pid} didn't stop within {patience:.0f} s and is killed")
        process.kill()
        process.wait()
    finally:
        if process.stdin is not None:
            process.stdin.close()


class Workers:
    """The worker processes of one repetition."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, commands: Sequence[Command]) -> None:
        for number, command in enumerate(commands):
            self.processes.append(start(command, self._scratch, f"worker-{number}"))

    def check_alive(self) -> None:
        if any(process.poll() is not None for process in self.processes):
            raise Failed(f"a worker ended by itself: {self.said()}")

    def said(self) -> str:
        """The last lines that the workers wrote."""
        logs = sorted(self._scratch.glob("worker-*.log"))
        lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()[-3:]]
        return " | ".join(lines) or "it wrote nothing"

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            end(process)


@contextmanager
def working(commands: Sequence[Command], scratch: Path) -> Iterator[Workers]:
    """Workers that run for the length of the block."""
    workers = Workers(scratch)
    try:
        workers.start(commands)
        yield workers
    finally:
        workers.stop()


def finish(command: Command, scratch: Path, name: str, seconds: float) -> dict[str, Any]:
    """Run a process to its end; what it told last, if that is JSON."""
    process = start(command, scratch, name)
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        raise Failed(f"the {name} took more than {seconds:.0f} s") from None
    finally:
        process.kill()
        end(process)
    lines = (scratch / f"{name}.log").read_text(errors="replace").strip().splitlines()
    if code != 0:
        raise Failed(f"the {name} ended with {code}: {lines[-1] if lines else 'it wrote nothing'}")
    told = [line for line in lines if line.startswith("{")]
    answer: dict[str, Any] = json.loads(told[-1]) if told else {}
    return answer
