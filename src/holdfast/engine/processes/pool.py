"""The pool of processes for tasks with `run_in="process"`: spawned, never forked, reused, and controlled by pipes.

A process gets the import path of a task and its arguments as JSON, and answers with the end of the attempt. A process
that has to stop is killed; one that dies affects no other. Answers carry a nonce of the call and the process id, a type
and a bounded length. User code can write to the pipe too: anything else in it, and a message that isn't complete within
a few seconds, counts as a crash of the process. `child_main.py` is the other side.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from holdfast.engine.attempt import Attempt
from holdfast.engine.processes.framing import BEGUN, END, REQUEST, BadFrame, answer_tag, encode_frame, read_frame
from holdfast.errors import ErrorInfo
from holdfast.model.clock import MAX_DURATION_MICROS
from holdfast.model.codec import MAX_PAYLOAD_BYTES
from holdfast.store import AttemptEnd
from holdfast.telemetry.log_format import console_log_settings

OUT_OF_MEMORY_EXIT_CODE = 37
"""The exit code of a process that hit its memory limit."""
MAX_STARTS = 3
POLL_INTERVAL_S = 0.5
BEGIN_TIMEOUT_S = 60.0
"""How long a process may take to start, or to accept an attempt: leftover code of an earlier one may block it."""
STALL_TIMEOUT_S = 10.0
"""How long the rest of a message may take that has begun. The other side sends it at once."""
MAX_ERROR_BYTES = 256 * 1024
MAX_REQUEST_BYTES = 2**32 - 1
"""Requests come from the worker."""


class Answer(msgspec.Struct, forbid_unknown_fields=True):
    """How an attempt ended in its process. User code may have written it, so its types are checked."""

    kind: Literal["done", "failed", "retrying"]
    state: Literal["done", "failed", "scheduled"]
    result: str | None = None
    error: str | None = None
    delay: Annotated[int, msgspec.Meta(ge=0, le=MAX_DURATION_MICROS)] | None = None
    failed: Annotated[int, msgspec.Meta(ge=0, le=1)] = 0

    def __post_init__(self) -> None:
        expected = "scheduled" if self.kind == "retrying" else self.kind
        if self.state != expected or (self.kind == "done") != (self.result is not None):
            raise ValueError("its parts contradict each other")
        if self.kind == "retrying" and self.delay is None:
            raise ValueError("a retry without a delay")


class ProcessDied(Exception):
    """The process ended during an attempt, or had to be killed because its answers can't be trusted."""


class TaskProcess:
    """One process of the pool. Used by one thread at a time; `kill` may be called from any thread."""

    def __init__(self, max_answer_bytes: int) -> None:
        self._max_answer_bytes = max_answer_bytes
        pipe_ends: list[int] = []
        try:
            pipe_ends += os.pipe()
            pipe_ends += os.pipe()
            requests, self._requests, self._answers, answers = pipe_ends
            command = [sys.executable, "-m", "holdfast.engine.processes.child_main", str(requests), str(answers)]
            paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
            variables = {**os.environ, "PYTHONPATH": paths}
            self._process = subprocess.Popen(
                command, pass_fds=(requests, answers), stdin=subprocess.DEVNULL, env=variables, process_group=0
            )
        except BaseException:
            for end in pipe_ends:
                os.close(end)
            raise
        os.close(requests)
        os.close(answers)
        os.set_blocking(self._requests, False)
        self._closed = False
        self._tag = b""
        self._lock = threading.Lock()

    @property
    def is_alive(self) -> bool:
        return not self._closed and self._process.poll() is None

    @property
    def is_usable(self) -> bool:
        """Whether it can serve another attempt: it is alive, and its pipe is empty."""
        return self.is_alive and not self._poll().poll(0)

    def send(self, request: dict[str, Any]) -> bool:
        """Send an attempt. Return False if the process is dead or can't be trusted, through no fault of this attempt.

        A bad frame before `BEGUN` is left over from an earlier attempt. User code may have started meanwhile; the
        caller kills this process before it uses another one.
        """
        nonce = secrets.token_hex(8)
        self._tag = answer_tag(nonce, self._process.pid)
        deadline = time.monotonic() + BEGIN_TIMEOUT_S
        try:
            self._write(encode_frame(REQUEST, msgspec.json.encode({**request, "nonce": nonce})), deadline)
            return self._answer(BEGUN, deadline) is not None
        except (OSError, BadFrame):
            return False

    def _write(self, data: bytes, deadline: float) -> None:
        """Write to a process that may not read: leftover code of an earlier attempt may keep it from doing so."""
        rest = memoryview(data)
        waiting = select.poll()
        waiting.register(self._requests, select.POLLOUT)
        while rest:
            if waiting.poll(POLL_INTERVAL_S * 1000):
                with suppress(BlockingIOError):
                    rest = rest[os.write(self._requests, rest) :]
            elif time.monotonic() > deadline or self._process.poll() is not None:
                raise BrokenPipeError("the process doesn't read")

    def finish(self) -> Answer:
        """Wait for the end of the attempt. Raises ProcessDied if the process ended first or sent something else."""
        try:
            answer = self._answer(END)
            if answer is not None:
                return _decode_answer(answer)
        except BadFrame as error:
            self.close()
            raise ProcessDied(str(error)) from None
        except msgspec.MsgspecError as error:
            self.close()
            raise ProcessDied(f"its process sent a malformed result: {error}") from None
        except OSError:
            pass
        self.close()
        raise ProcessDied(_cause_of_death(self._process.returncode))

    def _answer(self, kind: bytes, deadline: float | None = None) -> bytes | None:
        """Return the next message, or None if the process is gone and has sent nothing more.

        Programs that the process started may keep its pipe open; they are not waited for.
        """
        waiting = self._poll()

        def more(started: bool) -> bool:
            stalled_at = time.monotonic() + STALL_TIMEOUT_S
            while not waiting.poll(POLL_INTERVAL_S * 1000):
                if self._process.poll() is not None:
                    return bool(waiting.poll(0))
                now = time.monotonic()
                if started and now > stalled_at:
                    raise BadFrame("its process wrote an incomplete message to its result pipe")
                if deadline is not None and now > deadline:
                    raise BadFrame("its process didn't begin")
            return True

        return read_frame(self._answers, kind, self._max_answer_bytes, self._tag, more)

    def _poll(self) -> select.poll:
        waiting = select.poll()
        waiting.register(self._answers, select.POLLIN)
        return waiting

    def kill(self) -> None:
        """Kill the process and its descendants."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()  # also if user code moved it to another process group

    def close(self) -> None:
        """Kill the process, reap it and close its pipes."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.kill()
        self._process.wait()
        os.close(self._requests)
        os.close(self._answers)


class ProcessPool:
    """Reuses processes. Each attempt has one to itself for as long as it runs."""

    def __init__(
        self,
        around_calls: Sequence[Callable[[], None]] = (),
        after_calls: Sequence[Callable[[], None]] = (),
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        self._around_calls = around_calls
        self._after_calls = after_calls
        self._max_payload_bytes = max_payload_bytes
        self._idle: list[TaskProcess] = []
        self._all: set[TaskProcess] = set()
        self._lock = threading.Lock()

    def run(self, attempt: Attempt) -> AttemptEnd:
        """Run an attempt's user code in a process, and wait for its end."""
        process = self._start(attempt)
        if process is None:
            return attempt.failed(RuntimeError("no process could be started for the task"))
        answer: Answer | None = None
        try:
            answer = process.finish()
        except ProcessDied as error:
            return attempt.crashed(ErrorInfo("crashed", "Crashed", str(error)), isolate=False)
        finally:
            attempt.detach_process()
            # A process that is still busy, or was just killed, must never serve another attempt.
            self._put_back(process, dead=answer is None or attempt.stop_reason is not None)
        claim = attempt.claim
        return AttemptEnd(claim.id, claim.seq, claim.fence, **msgspec.structs.asdict(answer))

    def _start(self, attempt: Attempt) -> TaskProcess | None:
        """Return a process that has started the attempt. The run isn't charged for processes that died while idle."""
        for _ in range(MAX_STARTS):
            process = self._take()
            attempt.process = process
            if attempt.stop_reason is not None:  # asked to stop meanwhile
                process.kill()
            begun = False
            try:
                begun = process.send(
                    {
                        **_request(attempt),
                        "around_calls": list(map(_import_path, self._around_calls)),
                        "after_calls": list(map(_import_path, self._after_calls)),
                        "max_payload": self._max_payload_bytes,
                    }
                )
            finally:
                if not begun:
                    attempt.detach_process()
                    self._put_back(process, dead=True)
            if begun:
                return process
            if attempt.stop_reason is not None:
                return None
        return None

    def _take(self) -> TaskProcess:
        with self._lock:
            while self._idle:
                process = self._idle.pop()
                if process.is_usable:
                    return process
                self._all.discard(process)
                process.close()
        # The result is JSON text in JSON, where every character may be escaped; errors are short.
        process = TaskProcess(2 * self._max_payload_bytes + MAX_ERROR_BYTES)
        with self._lock:
            self._all.add(process)
        return process

    def _put_back(self, process: TaskProcess, *, dead: bool = False) -> None:
        if dead or not process.is_alive:
            process.close()
        with self._lock:
            if process.is_alive:
                self._idle.append(process)
            else:
                self._all.discard(process)

    def close(self) -> None:
        """Kill all processes, including busy ones."""
        with self._lock:
            processes, self._all, self._idle = self._all, set(), []
        for process in processes:
            process.close()


_decode_answer = msgspec.json.Decoder(Answer).decode


def _import_path(function: Callable[[], None]) -> tuple[str, str]:
    """Return the import path of a module-level function."""
    return function.__module__, function.__qualname__


def _request(attempt: Attempt) -> dict[str, Any]:
    """Return the request for the process, as JSON-compatible data."""
    function = attempt.signature.fn
    code = getattr(function, "__code__", None)
    return {
        "name": attempt.task.name,
        "module": function.__module__,
        "file": code.co_filename if code is not None else "",
        "qualname": function.__qualname__,
        "args": attempt.claim.args,
        "failures": attempt.claim.failures,
        "attempt": attempt.claim.attempt,
        "generation": attempt.claim.generation,
        "retry": attempt.retry.to_json(),
        "memory": attempt.task.declaration.memory,
        "argv": sys.argv,
        "run": attempt.claim.id,
        "worker": attempt.session,
        "trace": None if attempt.telemetry is None else attempt.telemetry.context(),
        "log": console_log_settings(),
    }


def _cause_of_death(code: int | None) -> str:
    if code == OUT_OF_MEMORY_EXIT_CODE:
        return "its process exceeded its memory limit"
    if code is not None and code < 0:
        return f"its process was killed by signal {-code}"
    return f"its process exited with code {code}"
