"""Keeps several worker processes alive: starts them, starts anew what dies, stops them all when told to.

One thread, one selector: it wakes for a signal, for output of a child, or when something is due. The children are fresh
interpreters, never forks. They notice when the supervisor is gone (see `leash.py`) and stop by themselves.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, TypeAlias

from holdfast.engine.processes.supervisor_link import ENDED, READY, SESSION, STOP, LineReader
from holdfast.telemetry import log

STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
HEARD = (*STOPPING, *PASSED_ON, signal.SIGTSTP, signal.SIGCHLD)

NOT_STOPPED_CLEANLY = 1


@dataclass(frozen=True, slots=True)
class Pace:
    """How patient a supervisor is. Seconds, but for `tries`."""

    first_pause: float = 0.5
    longest_pause: float = 30.0
    """Between starts that fail."""
    longest_pause_after_work: float = 2.0
    """Before a child that had started is replaced: runs wait for the replacement."""
    settled: float = 60.0
    """A child that lived so long begins again with the first pause."""
    tries: int = 3
    """So many starts in a row may fail by themselves while no other child works; then we give up."""
    patience: float = 10.0
    """Beyond the grace, before a child that doesn't stop is killed."""


class Slot:
    """The place of one worker process: the process of now, if any, and how its predecessors fared."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.child: Child | None = None
        self.starts = 0
        self.started_at = 0.0
        self.start_at = 0.0
        self.deaths = 0
        self.failed_starts = 0
        self.last_session: str | None = None

    @property
    def works(self) -> bool:
        return self.child is not None and self.child.ready

    def pause(self, pace: Pace) -> float:
        """How long to wait after so many deaths in a row."""
        longest = pace.longest_pause if self.failed_starts else pace.longest_pause_after_work
        return float(min(pace.first_pause * 2 ** min(max(self.deaths - 1, 0), 32), longest))


class Supervisor:
    """Runs so many processes, each with the command for its number, until it is told to stop. Only in the main thread:
    it lives by signals."""

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        processes: int,
        grace: float,
        show: Show,
        pace: Pace | None = None,
    ) -> None:
        self._command = command
        self._grace = grace
        self._show = show
        self._pace = pace or Pace()
        self._slots = [Slot(number) for number in range(1, processes + 1)]
        self._selector = selectors.DefaultSelector()
        self._heard: deque[int] = deque()
        self._kill_at: float | None = None  # set while stopping
        self._code = 0

    def run(self) -> int:
        """Until SIGTERM or Ctrl-C, or until nothing can be started; the exit code."""
        log.supervisor_started(len(self._slots))
        with self._signals():
            try:
                while self._kill_at is None or self._alive():
                    self.tick()
            finally:
                self._kill(self._alive())
                for output in self._outputs():
                    self._forget(output)
        log.supervisor_stopped()
        return self._code

    def tick(self) -> None:
        """One round: start what is due, wait for something to happen, and see to it."""
        self._start_due()
        for key, _ in self._selector.select(self._until_next()):
            if not isinstance(key.data, Output):
                _empty(key.fd)
            elif key.data.read() is False:
                self._forget(key.data)
        while self._heard:
            self._obey(self._heard.popleft())
        for slot in self._slots:
            self._look_after(slot)
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_late()

    def _alive(self) -> list[Child]:
        return [slot.child for slot in self._slots if slot.child is not None]

    def _until_next(self) -> float | None:
        if self._kill_at is not None:
            return max(self._kill_at - time.monotonic(), 0.0)
        due = [slot.start_at for slot in self._slots if slot.child is None]
        return max(min(due) - time.monotonic(), 0.0) if due else None

    # Starting and restarting

    def _start_due(self) -> None:
        if self._kill_at is None:
            now = time.monotonic()
            for slot in self._slots:
                if slot.child is None and slot.start_at <= now:
                    self._start(slot, now)

    def _start(self, slot: Slot, now: float) -> None:
        slot.started_at = now
        slot.starts += 1
        try:
            child = Child(slot.number, self._command(slot.number), self._show)
        except OSError as error:  # no memory, too many processes or open files
            slot.deaths += 1
            slot.start_at = now + slot.pause(self._pace)
            log.child_start_failed(slot.number, error, slot.pause(self._pace))
            return
        slot.child = child
        self._selector.register(child.output.descriptor, selectors.EVENT_READ, child.output)
        if slot.last_session is not None:
            child.tell_ended(slot.last_session)
        if slot.starts > 1:
            log.child_restarted(slot.number, child.pid)

    def _look_after(self, slot: Slot) -> None:
        child = slot.child
        code = child.ended() if child is not None else None
        if child is None or code is None:
            return
        slot.child = None
        child.output.read_all()  # its last words come before ours
        if self._kill_at is not None:
            self._code = self._code or (NOT_STOPPED_CLEANLY if code else 0)
        else:
            self._died(slot, child, code)

    def _died(self, slot: Slot, child: Child, code: int) -> None:
        now = time.monotonic()
        slot.last_session = child.session
        if slot.last_session is not None:  # its process has ended for certain: nobody needs to wait for its lease
            for other in self._alive():
                other.tell_ended(slot.last_session)
        slot.deaths = 1 if now - slot.started_at >= self._pace.settled else slot.deaths + 1
        slot.failed_starts = slot.failed_starts + 1 if code > 0 and not child.ready else 0
        if slot.failed_starts >= self._pace.tries and not any(other.works for other in self._slots):
            log.supervisor_gave_up(slot.number, slot.failed_starts, how_it_ended(code))
            self._code = code
            self._tell_to_stop(self._pace.patience)
            return
        slot.start_at = now + slot.pause(self._pace)
        log.child_died(slot.number, child.pid, how_it_ended(code), slot.pause(self._pace))

    def _outputs(self) -> list[Output]:
        return [key.data for key in self._selector.get_map().values() if isinstance(key.data, Output)]

    def _forget(self, output: Output) -> None:
        self._selector.unregister(output.descriptor)
        output.close()

    # Stopping

    def _obey(self, number: int) -> None:
        if number in STOPPING:
            self._stop()
        elif number in PASSED_ON:
            for child in self._alive():
                child.signal(number)
        elif number == signal.SIGTSTP:
            self._pause_all()

    def _stop(self) -> None:
        """Once to finish, once more to hurry."""
        if self._kill_at is None:
            log.supervisor_stopping(len(self._alive()), self._grace)
            self._tell_to_stop(self._grace + self._pace.patience)
        else:
            log.supervisor_stopping_now()
            self._tell_to_stop(self._pace.patience)

    def _tell_to_stop(self, seconds: float) -> None:
        self._kill_at = time.monotonic() + seconds
        for child in self._alive():
            child.tell_to_stop()

    def _kill_late(self) -> None:
        for child in self._alive():
            log.child_killed(child.number, child.pid)
        self._kill(self._alive())
        self._kill_at = time.monotonic() + self._pace.patience

    def _kill(self, children: list[Child]) -> None:
        for child in children:
            child.signal_group(signal.SIGKILL)

    def _pause_all(self) -> None:
        """Ctrl-Z: the whole family sleeps, and wakes with us. What it has in hand may be taken over meanwhile."""
        for child in self._alive():
            child.signal_group(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        for child in self._alive():
            child.signal_group(signal.SIGCONT)

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Note signals and wake the selector; the work is done between two selects. What nohup ignores stays so."""

        def note(number: int, _frame: FrameType | None) -> None:
            self._heard.append(number)

        readable, writable = os.pipe()
        for descriptor in (readable, writable):
            os.set_blocking(descriptor, False)
        self._selector.register(readable, selectors.EVENT_READ)
        ignored = [number for number in HEARD if signal.getsignal(number) is signal.SIG_IGN]
        waker = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        before: dict[int, Any] = {number: signal.signal(number, note) for number in HEARD if number not in ignored}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            signal.set_wakeup_fd(waker)
            self._selector.close()
            os.close(readable)
            os.close(writable)


def _empty(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        pass


# child

LONGEST_LINE = 64 * 1024

Show: TypeAlias = Callable[[int, list[bytes]], None]
"""Shows whole lines of the worker with that number."""


class Output:
    """What a process writes, cut into lines. Outlives it when a program that it started still holds the other end."""

    def __init__(self, number: int, descriptor: int, show: Show) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self._number = number
        self._show = show
        self._rest = b""
        self._closed = False

    def read(self) -> bool | None:
        """Show what has come; False at its end, None when nothing has."""
        if self._closed:
            return False
        try:
            piece = os.read(self.descriptor, LONGEST_LINE)
        except BlockingIOError:
            return None
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if self._rest and (not piece or len(self._rest) >= LONGEST_LINE):
            lines.append(self._rest)
            self._rest = b""
        if lines:
            self._show(self._number, lines)
        return bool(piece)

    def read_all(self) -> None:
        """Show what is there already."""
        while self.read():
            pass

    def close(self) -> None:
        """Show what is there, the beginning of a line too, and be done with it."""
        self.read_all()
        if self._rest:
            self._show(self._number, [self._rest])
        self._closed = True
        os.close(self.descriptor)


class Child:
    """A fresh interpreter, in a process group of its own: Ctrl-C in a terminal doesn't reach it but through us."""

    def __init__(self, number: int, command: Sequence[str], show: Show) -> None:
        ours, theirs = socket.socketpair()
        readable, writable = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*command, "--supervised", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=writable,
                stderr=writable,
                pass_fds=[theirs.fileno()],
                process_group=0,
            )
        except BaseException:
            ours.close()
            os.close(readable)
            raise
        finally:
            theirs.close()
            os.close(writable)
        ours.setblocking(False)
        self._leash = ours
        self._lines = LineReader(ours)
        self.number = number
        self.pid = self._process.pid
        self.output = Output(number, readable, show)
        self._ready = False
        self._session: str | None = None

    @property
    def ready(self) -> bool:
        """Whether its start went well."""
        self._read()
        return self._ready

    @property
    def session(self) -> str | None:
        """The last session that it opened, or was about to open."""
        self._read()
        return self._session

    def _read(self) -> None:
        """Process the lines that it has sent."""
        with suppress(OSError):
            while (lines := self._lines.read()) is not None:
                for word, rest in lines:
                    if word == READY:
                        self._ready = True
                    elif word == SESSION:
                        self._session = rest

    def tell_to_stop(self) -> None:
        """Once to finish within the grace, twice to hurry."""
        self._send(STOP)

    def tell_ended(self, session: str) -> None:
        """Tell it to recover the runs of a session whose process has ended."""
        self._send(f"{ENDED} {session}")

    def _send(self, line: str) -> None:
        with suppress(OSError):
            self._leash.send(f"{line}\n".encode())

    def signal(self, number: int) -> None:
        if self._process.returncode is None:  # not reaped, so the number is still its own
            self._process.send_signal(number)

    def signal_group(self, number: int) -> None:
        """Signal the process and what it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def ended(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs. What it started and left behind is killed."""
        if self._process.returncode is None and self._process.poll() is not None:
            self._read()  # what it reported last
            self.signal_group(signal.SIGKILL)
            self._leash.close()
        return self._process.returncode


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
