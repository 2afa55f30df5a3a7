"""The supervisor keeps several worker processes alive: it starts them, replaces those that die, and stops them all.

It has one thread and one selector, which wakes for a signal, for output of a process, or when something is due. The
processes are fresh interpreters, never forks. They notice the death of the supervisor (see `supervisor_link.py`) and
stop by themselves.

A process whose threads stand still, because a run holds the GIL, can't release the write lock of a SQLite file. All
other writers wait for it, and would lose their leases. So the supervisor kills it.
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

from holdfast.database.held_locks import held_write_lock
from holdfast.engine.processes.supervisor_link import ALIVE, ENDED, READY, SESSION, STOP, LineReader
from holdfast.telemetry import log

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
FORWARDED_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
HANDLED_SIGNALS = (*STOP_SIGNALS, *FORWARDED_SIGNALS, signal.SIGTSTP, signal.SIGCHLD)
UNCLEAN_STOP_EXIT_CODE = 1
MAX_LINE_BYTES = 64 * 1024
FREEZE_CHECKS = 8
"""How often the supervisor looks at a process within the time after which its silence means that it is frozen."""
START_CHECK_S = 1.0
"""How often it looks while no process has reported yet."""

ShowLines: TypeAlias = Callable[[int, list[bytes]], None]
"""Shows whole lines of the worker with that number."""


class OutputReader:
    """Splits the output of a process into lines.

    It outlives the process if a program that the process started still holds the other end.
    """

    def __init__(self, number: int, descriptor: int, show: ShowLines) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor
        self._number = number
        self._show = show
        self._rest = b""
        self._closed = False

    def read(self) -> bool | None:
        """Show what has arrived. Return False at the end of the output, None if nothing has arrived."""
        if self._closed:
            return False
        try:
            piece = os.read(self.descriptor, MAX_LINE_BYTES)
        except BlockingIOError:
            return None
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if self._rest and (not piece or len(self._rest) >= MAX_LINE_BYTES):
            lines.append(self._rest)
            self._rest = b""
        if lines:
            self._show(self._number, lines)
        return bool(piece)

    def read_all(self) -> None:
        """Show everything that has arrived."""
        while self.read():
            pass

    def close(self) -> None:
        """Show everything that has arrived, including an unfinished line, and close the descriptor."""
        self.read_all()
        if self._rest:
            self._show(self._number, [self._rest])
        self._closed = True
        os.close(self.descriptor)


class WorkerProcess:
    """One worker process: a fresh interpreter in its own process group, out of reach of a terminal's Ctrl-C."""

    def __init__(self, number: int, command: Sequence[str], show: ShowLines) -> None:
        own_end, worker_end = socket.socketpair()
        readable, writable = os.pipe()
        try:
            self._process = subprocess.Popen(
                [*command, "--supervised", str(worker_end.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=writable,
                stderr=writable,
                pass_fds=[worker_end.fileno()],
                process_group=0,
            )
        except BaseException:
            own_end.close()
            os.close(readable)
            raise
        finally:
            worker_end.close()
            os.close(writable)
        own_end.setblocking(False)
        self._socket = own_end
        self._lines = LineReader(own_end)
        self.number = number
        self.pid = self._process.pid
        self.output = OutputReader(number, readable, show)
        self._ready = False
        self._session: str | None = None
        self._heard_at = 0.0
        self.silence_s: float | None = None
        """After how much silence the process is frozen; None if it hasn't said so yet."""
        self.was_blocking = False
        """Whether the process was frozen with a write lock at the last check."""

    @property
    def ready(self) -> bool:
        """Whether the worker has started."""
        self._read()
        return self._ready

    @property
    def session(self) -> str | None:
        """The last session that the worker opened, or was about to open."""
        self._read()
        return self._session

    def _read(self) -> None:
        """Process the lines that the worker has sent."""
        with suppress(OSError):
            while (lines := self._lines.read()) is not None:
                for word, rest in lines:
                    if word == READY:
                        self._ready = True
                    elif word == SESSION:
                        self._session = rest
                    elif word == ALIVE:
                        self._heard_at, self.silence_s = time.monotonic(), float(rest)

    def is_frozen(self) -> bool:
        """Return whether the process has reported no progress for as long as it said."""
        self._read()
        return self.silence_s is not None and time.monotonic() - self._heard_at > self.silence_s

    def restart_silence(self) -> None:
        """Count the silence of the process from now on."""
        self._read()
        self._heard_at = time.monotonic()

    def request_stop(self) -> None:
        """Ask the worker to finish within its grace period; the second call ends the grace period."""
        self._send(STOP)

    def report_ended(self, session: str) -> None:
        """Ask the worker to recover the runs of a session whose process has ended."""
        self._send(f"{ENDED} {session}")

    def _send(self, line: str) -> None:
        with suppress(OSError):
            self._socket.send(f"{line}\n".encode())

    def signal(self, number: int) -> None:
        if self._process.returncode is None:  # not reaped, so the process id is still its own
            self._process.send_signal(number)

    def signal_group(self, number: int) -> None:
        """Signal the process and everything that it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def exit_code(self) -> int | None:
        """Return the exit code, negative for a signal; None while the process runs.

        When the process has ended, the programs that it left behind are killed.
        """
        if self._process.returncode is None and self._process.poll() is not None:
            self._read()  # its last lines
            self.signal_group(signal.SIGKILL)
            self._socket.close()
        return self._process.returncode


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """When the supervisor restarts, gives up and kills. Durations are seconds."""

    first_pause: float = 0.5
    longest_pause: float = 30.0
    """The longest pause between starts that fail."""
    longest_pause_after_work: float = 2.0
    """The longest pause before a process that had started is replaced: its runs wait for the replacement."""
    settled: float = 60.0
    """A process that lived this long starts over with the first pause."""
    tries: int = 3
    """After this many failed starts in a row, while no other process works, the supervisor gives up."""
    patience: float = 10.0
    """How long after the grace period a process that doesn't stop is killed."""


class Slot:
    """One of the supervisor's worker processes: the current process, if any, and the record of its predecessors."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: WorkerProcess | None = None
        self.starts = 0
        self.started_at = 0.0
        self.start_at = 0.0
        self.deaths = 0
        self.failed_starts = 0
        self.last_session: str | None = None

    @property
    def works(self) -> bool:
        return self.process is not None and self.process.ready

    def pause(self, policy: RestartPolicy) -> float:
        """Return how long to wait after `deaths` deaths in a row."""
        longest = policy.longest_pause if self.failed_starts else policy.longest_pause_after_work
        return float(min(policy.first_pause * 2 ** min(max(self.deaths - 1, 0), 32), longest))


class Supervisor:
    """Runs a number of processes, each with the command for its number, until it is signaled to stop.

    Only in the main thread, because it handles signals.
    """

    def __init__(
        self,
        command: Callable[[int], Sequence[str]],
        processes: int,
        grace: float,
        show: ShowLines,
        policy: RestartPolicy | None = None,
    ) -> None:
        self._command = command
        self._grace = grace
        self._show = show
        self._policy = policy or RestartPolicy()
        self._slots = [Slot(number) for number in range(1, processes + 1)]
        self._selector = selectors.DefaultSelector()
        self._signals: deque[int] = deque()
        self._kill_at: float | None = None  # set while stopping
        self._freeze_check_at = 0.0
        self._freeze_check_s = START_CHECK_S
        self._exit_code = 0

    def run(self) -> int:
        """Run until SIGTERM or Ctrl-C, or until nothing can be started. Return the exit code."""
        log.supervisor_started(len(self._slots))
        with self._signal_handlers():
            try:
                while self._kill_at is None or self._alive():
                    self.tick()
            finally:
                self._kill(self._alive())
                for output in self._outputs():
                    self._close_output(output)
        log.supervisor_stopped()
        return self._exit_code

    def tick(self) -> None:
        """Start what is due, wait for an event, and handle it."""
        self._start_due()
        for key, _ in self._selector.select(self._seconds_until_due()):
            if not isinstance(key.data, OutputReader):
                _drain_pipe(key.fd)
            elif key.data.read() is False:
                self._close_output(key.data)
        while self._signals:
            self._handle_signal(self._signals.popleft())
        for slot in self._slots:
            self._check(slot)
        self._kill_blocking()
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_late()

    def _alive(self) -> list[WorkerProcess]:
        return [slot.process for slot in self._slots if slot.process is not None]

    def _seconds_until_due(self) -> float | None:
        if self._kill_at is not None:
            return max(self._kill_at - time.monotonic(), 0.0)
        due = [slot.start_at for slot in self._slots if slot.process is None]
        if self._alive():
            due.append(self._freeze_check_at)
        return max(min(due) - time.monotonic(), 0.0) if due else None

    # Starting and restarting

    def _start_due(self) -> None:
        if self._kill_at is None:
            now = time.monotonic()
            for slot in self._slots:
                if slot.process is None and slot.start_at <= now:
                    self._start(slot, now)

    def _start(self, slot: Slot, now: float) -> None:
        slot.started_at = now
        slot.starts += 1
        try:
            process = WorkerProcess(slot.number, self._command(slot.number), self._show)
        except OSError as error:  # no memory, too many processes or open files
            slot.deaths += 1
            slot.start_at = now + slot.pause(self._policy)
            log.child_start_failed(slot.number, error, slot.pause(self._policy))
            return
        slot.process = process
        self._selector.register(process.output.descriptor, selectors.EVENT_READ, process.output)
        if slot.last_session is not None:
            process.report_ended(slot.last_session)
        if slot.starts > 1:
            log.child_restarted(slot.number, process.pid)

    def _check(self, slot: Slot) -> None:
        """Handle the death of a slot's process."""
        process = slot.process
        code = process.exit_code() if process is not None else None
        if process is None or code is None:
            return
        slot.process = None
        process.output.read_all()  # show its last lines before the supervisor's own
        if self._kill_at is not None:
            self._exit_code = self._exit_code or (UNCLEAN_STOP_EXIT_CODE if code else 0)
        else:
            self._replace(slot, process, code)

    def _replace(self, slot: Slot, process: WorkerProcess, code: int) -> None:
        now = time.monotonic()
        slot.last_session = process.session
        if slot.last_session is not None:  # the process has certainly ended, so nobody has to wait for its lease
            for other in self._alive():
                other.report_ended(slot.last_session)
        slot.deaths = 1 if now - slot.started_at >= self._policy.settled else slot.deaths + 1
        slot.failed_starts = slot.failed_starts + 1 if code > 0 and not process.ready else 0
        if slot.failed_starts >= self._policy.tries and not any(other.works for other in self._slots):
            log.supervisor_gave_up(slot.number, slot.failed_starts, describe_exit(code))
            self._exit_code = code
            self._request_stop(self._policy.patience)
            return
        slot.start_at = now + slot.pause(self._policy)
        log.child_died(slot.number, process.pid, slot.last_session, describe_exit(code), slot.pause(self._policy))

    def _kill_blocking(self) -> None:
        """Kill processes that are frozen while they hold the write lock of a SQLite file, at two checks in a row.

        If the supervisor itself was delayed, its processes may have been, too, and all of them get time to report.
        """
        now = time.monotonic()
        if now < self._freeze_check_at:
            return
        was_delayed = now > self._freeze_check_at + self._freeze_check_s
        for process in self._alive():
            if was_delayed:
                process.restart_silence()
            held = held_write_lock(process.pid) if process.is_frozen() else None
            if held is not None and process.was_blocking:
                log.blocking_child_killed(process.number, process.pid, held)
                process.signal_group(signal.SIGKILL)
            process.was_blocking = held is not None
        limits = [process.silence_s for process in self._alive() if process.silence_s is not None]
        self._freeze_check_s = min(limits) / FREEZE_CHECKS if limits else START_CHECK_S
        self._freeze_check_at = now + self._freeze_check_s

    def _outputs(self) -> list[OutputReader]:
        return [key.data for key in self._selector.get_map().values() if isinstance(key.data, OutputReader)]

    def _close_output(self, output: OutputReader) -> None:
        self._selector.unregister(output.descriptor)
        output.close()

    # Stopping

    def _handle_signal(self, number: int) -> None:
        if number in STOP_SIGNALS:
            self._stop()
        elif number in FORWARDED_SIGNALS:
            for process in self._alive():
                process.signal(number)
        elif number == signal.SIGTSTP:
            self._suspend()

    def _stop(self) -> None:
        """Stop within the grace period; the second time, end the grace period."""
        if self._kill_at is None:
            log.supervisor_stopping(len(self._alive()), self._grace)
            self._request_stop(self._grace + self._policy.patience)
        else:
            log.supervisor_stopping_now()
            self._request_stop(self._policy.patience)

    def _request_stop(self, kill_after_s: float) -> None:
        self._kill_at = time.monotonic() + kill_after_s
        for process in self._alive():
            process.request_stop()

    def _kill_late(self) -> None:
        for process in self._alive():
            log.child_killed(process.number, process.pid)
        self._kill(self._alive())
        self._kill_at = time.monotonic() + self._policy.patience

    def _kill(self, processes: list[WorkerProcess]) -> None:
        for process in processes:
            process.signal_group(signal.SIGKILL)

    def _suspend(self) -> None:
        """Handle Ctrl-Z: suspend and resume all processes together. Other workers may take over their runs."""
        for process in self._alive():
            process.signal_group(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        for process in self._alive():
            process.signal_group(signal.SIGCONT)

    @contextmanager
    def _signal_handlers(self) -> Iterator[None]:
        """Record signals and wake the selector; `tick` handles them. Signals that nohup ignores stay ignored."""

        def record(number: int, _frame: FrameType | None) -> None:
            self._signals.append(number)

        readable, writable = os.pipe()
        for descriptor in (readable, writable):
            os.set_blocking(descriptor, False)
        self._selector.register(readable, selectors.EVENT_READ)
        ignored = [number for number in HANDLED_SIGNALS if signal.getsignal(number) is signal.SIG_IGN]
        waker = signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
        before: dict[int, Any] = {
            number: signal.signal(number, record) for number in HANDLED_SIGNALS if number not in ignored
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            signal.set_wakeup_fd(waker)
            self._selector.close()
            os.close(readable)
            os.close(writable)


def _drain_pipe(descriptor: int) -> None:
    try:
        while os.read(descriptor, 4096):
            pass
    except BlockingIOError:
        pass
