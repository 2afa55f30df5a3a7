"""Author code that a process can import."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path


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
    if os.fork() == 0:
        _mark(mark)
        time.sleep(600)
    os.abort()


def terminate_a_program() -> int:
    program = subprocess.Popen(["sleep", "600"])
    program.terminate()
    return program.wait()


def close_stdout(mark: str) -> str:
    _mark(mark)
    sys.stdout.close()
    return "done"
