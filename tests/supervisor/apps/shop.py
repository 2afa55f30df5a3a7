"""The app of the supervised workers. `LEDGER` and `HOLDFAST_URL` say where."""

import os
import subprocess
import sys
import threading
import time

from holdfast import Holdfast, Retry, SyncContext
from tests.support.culprits import hold_gil
from tests.support.ledger import Ledger

app = Holdfast()
ledger = Ledger(os.environ["LEDGER"])
one_at_a_time = threading.Lock()

if "WRITE_AT_IMPORT" in os.environ:
    sys.stderr.write(os.environ["WRITE_AT_IMPORT"])


@app.task(name="nap")
def nap(n: int, seconds: float) -> None:
    ledger.write("begun", n, os.getpid())
    time.sleep(seconds)
    ledger.write("done", n, os.getpid())


@app.task(name="talk")
def talk(n: int, length: int) -> None:
    with one_at_a_time:  # threads of one process can tear each other's lines, with Python's own standard output
        print(f"<{n} {'x' * length} {n}>")  # noqa: T201


@app.task(name="start_program")
def start_program() -> None:
    program = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    ledger.write("program", program.pid)
    program.wait()


@app.task(name="read_input")
def read_input() -> str:
    return subprocess.run(
        [sys.executable, "-c", "print(repr(input()))"], capture_output=True, check=False
    ).stderr.decode()


@app.task(name="freeze", retry=Retry(max_attempts=1), max_crashes=0)
def freeze(ctx: SyncContext, seconds: float) -> None:
    ctx.transaction(write_and_freeze, seconds)


def write_and_freeze(_connection: object, seconds: float) -> None:
    """Hold the GIL in the middle of a write transaction."""
    ledger.write("frozen", os.getpid())
    hold_gil(seconds)
