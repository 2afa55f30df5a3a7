"""Start and stop the child processes of a benchmark. None outlives its `with` block or this process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.benchmark import MeasurementFailed, log

Command: TypeAlias = Sequence[str]

ROOT = Path(__file__).resolve().parents[1]
STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The worker processes to start."""

    workers: int = 1
    concurrency: int = 100
    queues: Sequence[str] = ()
    tasks: int = 0
    """How many more tasks they register."""
    logs: str | None = None
    """The level from which on they keep the lines of runs."""

    def commands(self, url: str, scratch: Path) -> list[Command]:
        more = [word for name in self.queues for word in ("--queue", name)]
        more += ["--tasks", str(self.tasks)] if self.tasks else []
        more += ["--logs", self.logs] if self.logs else []
        return [child_command("work", url, scratch, "--concurrency", str(self.concurrency), *more)] * self.workers


def child_command(action: str, url: str, scratch: Path, *more: str) -> Command:
    """Return the command line of a Holdfast child process (`child.py`)."""
    return [sys.executable, "-m", "benchmarks.child", action, "--url", url, "--scratch", str(scratch), *more]


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Create a temporary folder for the markers and logs of one repetition's child processes."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def start_process(command: Command, scratch: Path, name: str) -> subprocess.Popen[bytes]:
    """Start a process in its own session, so that Ctrl-C reaches only us.

    The process exits when its standard input closes, which happens when this process ends, if not before.
    """
    with (scratch / f"{name}.log").open("wb") as output:
        return subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=output, stderr=output, start_new_session=True
        )


def wait_or_kill(process: subprocess.Popen[bytes], timeout_s: float = STOP_TIMEOUT_S) -> None:
    """Wait for a process that was asked to stop, and kill it after the timeout."""
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        log(f"process {process.pid} did not stop within {timeout_s:.0f} s; killing it")
        process.kill()
        process.wait()
    finally:
        if process.stdin is not None:
            process.stdin.close()


def run_process(command: Command, scratch: Path, name: str, timeout_s: float) -> dict[str, Any]:
    """Run a process to its end and return the last JSON object that it printed."""
    process = start_process(command, scratch, name)
    try:
        code = process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        raise MeasurementFailed(f"the {name} took more than {timeout_s:.0f} s") from None
    finally:
        process.kill()
        wait_or_kill(process)
    lines = (scratch / f"{name}.log").read_text(errors="replace").strip().splitlines()
    if code != 0:
        raise MeasurementFailed(f"the {name} exited with {code}: {lines[-1] if lines else 'no output'}")
    objects = [line for line in lines if line.startswith("{")]
    answer: dict[str, Any] = json.loads(objects[-1]) if objects else {}
    return answer


class Workers:
    """The worker processes of one repetition."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self, commands: Sequence[Command]) -> None:
        for number, command in enumerate(commands):
            self.processes.append(start_process(command, self._scratch, f"worker-{number}"))

    def check_alive(self) -> None:
        if any(process.poll() is not None for process in self.processes):
            raise MeasurementFailed(f"a worker exited: {self.last_output()}")

    def last_output(self) -> str:
        """Return the last lines of the workers' logs."""
        logs = sorted(self._scratch.glob("worker-*.log"))
        lines = [line for path in logs for line in path.read_text(errors="replace").splitlines()[-3:]]
        return " | ".join(lines) or "no output"

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            wait_or_kill(process)


@contextmanager
def running_workers(commands: Sequence[Command], scratch: Path) -> Iterator[Workers]:
    """Run workers for the duration of the block."""
    workers = Workers(scratch)
    try:
        workers.start(commands)
        yield workers
    finally:
        workers.stop()
