"""Author code that a process can import."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from holdfast import idempotency_key
from holdfast.engine.processes.framing import answer_tag


@dataclass
class Order:
    number: int
    lines: list[str]


@dataclass
class Priced:
    """Looks its price up, also where the list of prices has changed."""

    name: str

    def __post_init__(self) -> None:
        self.price = {"rope": 3}[self.name]


def price(article: Priced) -> int:
    return article.price


def total(order: Order) -> Order:
    return Order(order.number + 1, [line.upper() for line in order.lines])


def key() -> str:
    return idempotency_key()


def own_pid() -> int:
    return os.getpid()


def abort(mark: str) -> None:
    _mark(mark)
    os.abort()


def hog(mark: str) -> None:
    _mark(mark)
    kept = []
    while True:
        kept.append(bytearray(16 * 1024 * 1024))


def leave(code: int) -> None:
    os._exit(code)


def raise_value_error() -> None:
    raise ValueError("no such order")


def stand_still(mark: str) -> None:
    """Holds the GIL: nothing but a kill ends it."""
    _mark(mark)
    ctypes.PyDLL(None).sleep(600)


def wait_for_ever(mark: str) -> None:
    _mark(mark)
    while True:
        time.sleep(0.01)


def signal_own_group() -> str:
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)
    return "alive"


def nothing(number: int) -> int:
    return number


def _mark(path: str) -> None:
    """One line a try, with the process that tries."""
    with Path(path).open("a") as file:
        file.write(f"{os.getpid()}\n")


def start_another(mark: str) -> None:
    """Leaves a process behind that holds whatever this one has open."""
    if _fork("libc") == 0:
        _mark(mark)
        time.sleep(600)
    _wait_for(mark)
    os.abort()


def terminate_a_program() -> int:
    program = subprocess.Popen(["sleep", "600"])
    program.terminate()
    return program.wait()


def close_stdout(mark: str) -> str:
    _mark(mark)
    sys.stdout.close()
    return "done"


# Tasks that fork. Their copies share everything with the process that serves the run.


def _wait_for(path: str) -> None:
    while not Path(path).exists():
        time.sleep(0.01)


def _fork(how: str) -> int:
    """With `libc`, Python doesn't notice, and calls no hooks."""
    return os.fork() if how == "python" else ctypes.PyDLL(None).fork()


def return_twice(how: str, mark: str, go: str) -> int:
    """Returns the id of the process; in its copy -1, when told to go."""
    if _fork(how) == 0:
        _mark(mark)
        _wait_for(go)
        return -1
    return os.getpid()


def slow(number: int, go: str) -> tuple[int, int]:
    _wait_for(go)
    return number, os.getpid()


def fail_to_exec(how: str) -> int:
    """Returns the exit code of its copy."""
    pid = _fork(how)
    if pid == 0:
        os.execv("/no/such/program", ["program"])
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def exit_in_a_copy(code: int) -> int:
    pid = os.fork()
    if pid == 0:
        sys.exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _pipes() -> list[int]:
    """All pipes of this process that can be written to, but for its output."""
    found = [int(entry.name) for entry in Path("/proc/self/fd").iterdir() if int(entry.name) > 2]
    return [file for file in found if _is_writable_pipe(file)]


def _is_writable_pipe(file: int) -> bool:
    try:
        kind = os.fstat(file).st_mode
        return stat.S_ISFIFO(kind) and fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY
    except OSError:
        return False


def write_garbage(garbage: str) -> str:
    for file in _pipes():
        os.write(file, garbage.encode())
    return "done"


def leave_a_writer_behind(mark: str, go: str) -> int:
    if _fork("libc") == 0:
        _mark(mark)
        _wait_for(go)
        write_garbage("late")
        os._exit(0)
    return os.getpid()


def hang_once(mark: str, go: str, in_another_group: bool) -> str:
    """Hangs in its first try."""
    first = not Path(mark).exists()
    _mark(mark)
    if first:
        if in_another_group:
            os.setpgid(0, os.getpgid(os.getppid()))
        _wait_for(go)
    return "done"


def attack_the_pipe(kind: str, data: str, announced: int | None, tagged: bool) -> str:
    """Write a frame to the result pipe as the process itself would, with the nonce from its memory; then return."""
    frame = sys._getframe()
    while frame is not None and "request" not in frame.f_locals:
        frame = frame.f_back
    assert frame is not None
    tag = answer_tag(frame.f_locals["request"]["nonce"], os.getpid()) if tagged else b""
    size = len(data) if announced is None else announced
    for file in _pipes():
        os.write(file, tag + kind.encode() + size.to_bytes(4) + data.encode())
    return "done"


def return_text(size: int) -> str:
    return '"' * size
