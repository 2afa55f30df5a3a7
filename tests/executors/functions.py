"""Functions that tests run in executors: importable, so that another process can find them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import holdfast


def add(a: int, b: int) -> int:
    return a + b


def pid() -> int:
    return os.getpid()


def fail(message: str) -> None:
    raise ValueError(message)


def key() -> str:
    return holdfast.idempotency_key()


def leave(mark: str) -> None:
    """Leave the id of this process in a file."""
    with Path(mark).open("a") as file:
        file.write(f"{os.getpid()}\n")


def die(mark: str) -> None:
    """End this process, as a crash would."""
    leave(mark)
    os._exit(1)


def die_once(mark: str) -> str:
    """End this process the first time."""
    if not Path(mark).exists():
        die(mark)
    return "survived"


def wait_for_file(mark: str, file: str) -> str:
    """Leave the id of this process; return when a file exists."""
    leave(mark)
    while not Path(file).exists():
        time.sleep(0.01)
    return "found"


def run_until_stopped(mark: str) -> None:
    """Leave the id of this process; return when the code is asked to stop, and leave it again."""
    leave(mark)
    while not holdfast.stop_requested():
        time.sleep(0.01)
    leave(mark)
