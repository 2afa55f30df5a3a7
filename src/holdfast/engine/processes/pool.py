"""Processes for author code that shall be killable: spawned, never forked, kept warm, fed through pipes of our own.

A child gets a task's place in the code and its arguments as JSON, and answers with what the attempt came to. One that
has to stop is killed; one that dies takes nobody with it. Answers carry a nonce of the call and the process id of the
child; anything else in the pipe counts as a crash of the child. The child's side is `process_child.py`.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from holdfast.engine.attempt import Attempt
from holdfast.engine.processes.framing import ForeignFrame, answer_mark, read_frame, write_frame
from holdfast.errors import ErrorInfo
from holdfast.store import End
from holdfast.telemetry.log_format import console_log_settings

OUT_OF_MEMORY = 37
"""The exit code of a child that hit its memory limit."""
STARTS = 3
LOOK_SECONDS = 0.5


class Died(Exception):
    """The child ended in the middle of an attempt, or had to be killed because its answers can't be trusted."""


class Child:
    """One process. Used by one thread at a time; `kill` may come from any."""

    def __init__(self) -> None:
        ends: list[int] = []
        try:
            ends += os.pipe()
            ends += os.pipe()
            requests, self._requests, self._answers, answers = ends
            command = [sys.executable, "-m", "holdfast.engine.processes.child_main", str(requests), str(answers)]
            paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
            variables = {**os.environ, "PYTHONPATH": paths}
            self._process = subprocess.Popen(
                command, pass_fds=(requests, answers), stdin=subprocess.DEVNULL, env=variables, process_group=0
            )
        except BaseException:
            for end in ends:
                os.close(end)
            raise
        os.close(requests)
        os.close(answers)
        self._closed = False
        self._mark = b""
        self._lock = threading.Lock()

    @property
    def alive(self) -> bool:
        return not self._closed and self._process.poll() is None

    @property
    def usable(self) -> bool:
        """Whether it can serve another attempt: it is alive, and nothing is left in its pipe."""
        return self.alive and not self._poll().poll(0)

    def begin(self, request: dict[str, Any]) -> bool:
        """Hand over an attempt; False if the child is dead or can't be trusted, through no fault of this attempt.

        A foreign frame before `begun` is a leftover of an earlier attempt. Author code may have begun meanwhile; the
        caller kills the process before it starts another one.
        """
        nonce = secrets.token_hex(8)
        self._mark = answer_mark(nonce, self._process.pid)
        try:
            write_frame(self._requests, msgspec.json.encode({**request, "nonce": nonce}))
            return self._answer() == b"begun"
        except (OSError, ForeignFrame):
            return False

    def finish(self) -> dict[str, Any]:
        """Wait for what the attempt came to; raises Died when the child ended first."""
        try:
            answer = self._answer()
        except ForeignFrame:
            self.close()
            raise Died("a process other than the task's own wrote to its result pipe") from None
        except OSError:
            answer = None
        if answer is None:
            self.close()
            raise Died(_cause(self._process.returncode))
        end: dict[str, Any] = msgspec.json.decode(answer)
        return end

    def _answer(self) -> bytes | None:
        """The next message; None when the child is gone, but what it said before counts. What it started may still hold
        its pipe, and is not waited for."""
        waiting = self._poll()

        def more() -> bool:
            while not waiting.poll(LOOK_SECONDS * 1000):
                if self._process.poll() is not None:
                    return bool(waiting.poll(0))
            return True

        return read_frame(self._answers, more, self._mark)

    def _poll(self) -> select.poll:
        waiting = select.poll()
        waiting.register(self._answers, select.POLLIN)
        return waiting

    def kill(self) -> None:
        """End it now, whatever it does, and what it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()  # also if author code moved it to another process group

    def close(self) -> None:
        """Kill it, and leave nothing of it behind."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.kill()
        self._process.wait()
        os.close(self._requests)
        os.close(self._answers)


class Processes:
    """Warm children. An attempt has one to itself for as long as it runs."""

    def __init__(self, between: Sequence[Callable[[], None]] = ()) -> None:
        self._between = between
        self._idle: list[Child] = []
        self._all: set[Child] = set()
        self._lock = threading.Lock()

    def run(self, attempt: Attempt) -> End:
        """Run an attempt's author code in a process, and wait for it."""
        child = self._begin(attempt)
        if child is None:
            return attempt.failed(RuntimeError("no process could be started for it"))
        answer: dict[str, Any] | None = None
        try:
            answer = child.finish()
        except Died as died:
            return attempt.crashed(ErrorInfo("crashed", "Crashed", str(died)), isolate=False)
        finally:
            attempt.leave()
            # one that is still at it, or was killed a moment ago, must never serve another attempt
            self._put_back(child, dead=answer is None or attempt.order is not None)
        claim = attempt.claim
        return End(claim.id, claim.seq, claim.fence, **answer)

    def _begin(self, attempt: Attempt) -> Child | None:
        """A child that has begun the attempt; one that died while it was idle is not the run's fault."""
        for _ in range(STARTS):
            child = self._take()
            attempt.child = child
            if attempt.order is not None:  # told to stop meanwhile
                child.kill()
            begun = False
            try:
                begun = child.begin({**_request(attempt), "between": list(map(_place, self._between))})
            finally:
                if not begun:
                    attempt.leave()
                    self._put_back(child, dead=True)
            if begun:
                return child
            if attempt.order is not None:
                return None
        return None

    def _take(self) -> Child:
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.usable:
                    return child
                self._all.discard(child)
                child.close()
        child = Child()
        with self._lock:
            self._all.add(child)
        return child

    def _put_back(self, child: Child, *, dead: bool = False) -> None:
        if dead or not child.alive:
            child.close()
        with self._lock:
            if child.alive:
                self._idle.append(child)
            else:
                self._all.discard(child)

    def close(self) -> None:
        """Kill all children, also those at work."""
        with self._lock:
            children, self._all, self._idle = self._all, set(), []
        for child in children:
            child.close()


def _place(function: Callable[[], None]) -> tuple[str, str]:
    """Where a function of a module is found again."""
    return function.__module__, function.__qualname__


def _request(attempt: Attempt) -> dict[str, Any]:
    """What the child needs to know."""
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
        "retry": attempt.retry.to_json(),
        "memory": attempt.task.declaration.memory,
        "argv": sys.argv,
        "run": attempt.claim.id,
        "worker": attempt.session,
        "trace": None if attempt.watched is None else attempt.watched.kept(),
        "log": console_log_settings(),
    }


def _cause(code: int | None) -> str:
    if code == OUT_OF_MEMORY:
        return "its process ran into its memory limit"
    if code is not None and code < 0:
        return f"its process was ended by signal {-code}"
    return f"its process ended by itself, with code {code}"
