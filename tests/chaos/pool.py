"""The workers of a chaos run: so many processes, each replaced when it is killed."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

WORKER = Path(__file__).with_name("worker.py")
CLOCKS_OFF = (0.0, 600.0, -600.0, 3.0, -3.0)
STOP_SECONDS = 20.0


@dataclass
class Member:
    """One process. `busy`: a fault has it in hand, and no other may."""

    process: subprocess.Popen[bytes]
    log: Path
    busy: bool = False
    expected: bool = False
    """It was told to end."""


@dataclass(frozen=True)
class Kill:
    """Whom, and when by the monotonic clock."""

    pid: int
    at: float


class Attack(NamedTuple):
    """What the storm did to a worker: from when to when by the monotonic clock."""

    pid: int
    since: float
    until: float


@dataclass
class Pool:
    """Starts members, lends them to faults, and keeps their number."""

    url: str
    folder: Path
    size: int
    lease: float
    concurrency: int
    random_source: random.Random
    members: list[Member] = field(default_factory=list)
    gone: list[Member] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    attacks: list[Attack] = field(default_factory=list)
    clocks_off: int = 0
    failed_starts: int = 0
    ended_by_themselves: list[Member] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        for _ in range(self.size):
            self.members.append(self._new())

    def _new(self) -> Member:
        off = self.random_source.choice(CLOCKS_OFF)
        self.clocks_off += off != 0
        log = self.folder / f"worker{len(self.members) + len(self.gone)}.log"
        options = ["--lease", self.lease, "--concurrency", self.concurrency, "--clock-off", off]
        command = [sys.executable, WORKER, self.url, self.folder / "ledger", *options]
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(part) for part in command],
                stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        return Member(process, log)

    @contextlib.contextmanager
    def victim(self) -> Iterator[Member | None]:
        """A living worker that has started to work, for one fault alone; None if there is none to be had."""
        with self._lock:
            free = [member for member in self.members if not member.busy and _works(member)]
            member = self.random_source.choice(free) if free else None
            if member is not None:
                member.busy = True
        try:
            yield member
        finally:
            if member is not None:
                member.busy = False

    def kill(self, member: Member) -> None:
        """kill -9, and another one in its place."""
        member.expected = True
        at = time.monotonic()
        self.kills.append(Kill(member.process.pid, at))
        self.attacks.append(Attack(member.process.pid, at, at))
        os.killpg(member.process.pid, signal.SIGKILL)
        self.replace(member)

    def replace(self, member: Member) -> None:
        _reap(member)
        with self._lock:
            self.members.remove(member)
            self.gone.append(member)
            self.members.append(self._new())

    def tend(self) -> None:
        """Replace those that ended though nobody told them to: by an error, or because they couldn't start without a
        database, as they say at their start."""
        for member in [member for member in self.members if not member.expected and member.process.poll() is not None]:
            if b"not started: " in member.log.read_bytes():
                self.failed_starts += 1
            else:
                self.ended_by_themselves.append(member)
            member.expected = True
            self.replace(member)

    def logs(self) -> Iterator[tuple[Path, str]]:
        for member in (*self.gone, *self.members):
            yield member.log, member.log.read_text(errors="replace")

    def close(self) -> None:
        """SIGTERM for all; kill -9 for those that don't listen."""
        for member in self.members:
            member.expected = True
            with contextlib.suppress(ProcessLookupError):
                member.process.send_signal(signal.SIGCONT)
                member.process.terminate()
        for member in self.members:
            with contextlib.suppress(subprocess.TimeoutExpired):
                member.process.wait(STOP_SECONDS)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(member.process.pid, signal.SIGKILL)
            _reap(member)


def _works(member: Member) -> bool:
    return member.process.poll() is None and b"worker started" in member.log.read_bytes()


def _reap(member: Member) -> None:
    member.process.wait()
    if member.process.stdin is not None:
        member.process.stdin.close()
