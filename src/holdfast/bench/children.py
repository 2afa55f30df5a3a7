"""Starts and ends the processes of a measurement. None outlives the block that it was started in, nor this process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from holdfast.bench.measure import Failed, note

STOP_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class WorkerSetting:
    """How the workers of a measurement are started."""

    workers: int = 1
    concurrency: int = 100
    queues: Sequence[str] = ()

    def arguments(self) -> list[str]:
        return ["--concurrency", str(self.concurrency), *[part for name in self.queues for part in ("--queue", name)]]


def start(verb: str, url: str, scratch: Path, name: str, *more: str) -> subprocess.Popen[bytes]:
    """Start a process of ours, in a session of its own: Ctrl-C is for us, and we pass it on in our way."""
    command = [sys.executable, "-m", "holdfast.bench.process", verb, "--url", url, "--scratch", str(scratch), *more]
    with (scratch / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True)


def end(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process that was told to stop; kill it if it doesn't."""
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        note(f"process {process.pid} didn't stop within {STOP_SECONDS:.0f} s and is killed")
        process.kill()
        process.wait()
    finally:
        if process.stdin is not None:
            process.stdin.close()


class Workers:
    """The worker processes of one repetition."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, url: str, setting: WorkerSetting) -> None:
        for number in range(setting.workers):
            self._processes.append(start("work", url, self._scratch, f"worker-{number}", *setting.arguments()))

    def check_alive(self) -> None:
        if any(process.poll() is not None for process in self._processes):
            raise Failed(f"a worker ended by itself: {self.said()}")

    def said(self) -> str:
        """The last lines that the workers wrote."""
        logs = sorted(self._scratch.glob("worker-*.log"))
        lines = [line for log in logs for line in log.read_text(errors="replace").splitlines()[-3:]]
        return " | ".join(lines) or "it wrote nothing"

    def stop(self) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            end(process)


@contextmanager
def working(url: str, scratch: Path, setting: WorkerSetting) -> Iterator[Workers]:
    """Workers that run for the length of the block."""
    workers = Workers(scratch)
    try:
        workers.start(url, setting)
        yield workers
    finally:
        workers.stop()


def send(url: str, scratch: Path, count: int, seconds: float) -> None:
    """Enqueue single jobs from another process, with pauses, and wait until it has ended."""
    process = start("send", url, scratch, "sender", "--count", str(count))
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        raise Failed(f"sending {count} jobs took more than {seconds:.0f} s") from None
    finally:
        process.kill()
        end(process)
    if code != 0:
        lines = (scratch / "sender.log").read_text(errors="replace").strip().splitlines()
        raise Failed(f"the sender ended with {code}: {lines[-1] if lines else 'it wrote nothing'}")
