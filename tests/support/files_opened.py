"""Count the source files and functions that one run passes through: `python -m tests.support.files_opened [-v]`.

One process holds an app on SQLite and its worker. After a warm-up, `measure` enqueues one job and waits for its
result, then the same for a durable function with one step, several times each, under a profiler. It counts:

* calls between the start of `enqueue` and the return of `result`, in every one of the repetitions,
* in the threads through which the run passes: the caller, the claimer, the event loop and the committer. Other loops
  wake up because of the commit, but the run doesn't pass through them.
* of named functions (no comprehensions and lambdas) of `src/holdfast`. Files below `database/` are counted apart: every
  statement passes through the same ones.

On a slow machine a run takes longer than the claimer pauses or a client waits without a listener. Both are switched
off, so that the count doesn't depend on the machine.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import holdfast
from holdfast import Context, Holdfast
from holdfast.client import results
from holdfast.engine.loops import claimer

SOURCE = str(Path(holdfast.__file__).parent)
THREADS = {"MainThread", "holdfast-claimer", "holdfast-loop", "holdfast-committer"}
REPEATS = 20
WARM_UPS = 3
QUIET_S = 0.005
MAX_QUIET_CHECKS = 200

Function = tuple[str, str]
"""A file and the name of a function in it."""


class Recorder:
    """Records the functions of holdfast that these threads call while it is switched on."""

    def __init__(self) -> None:
        self._called: set[Function] | None = None
        self._calls = 0

    def profile(self, frame: FrameType, event: str, _arg: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SOURCE) or code.co_name[0] == "<":
            return
        if threading.current_thread().name in THREADS:
            self._calls += 1
            if self._called is not None:
                self._called.add((code.co_filename.removeprefix(SOURCE + "/"), code.co_qualname))

    def record(self, run: Callable[[], object]) -> set[Function]:
        """Return the functions that are called while `run` runs."""
        called: set[Function] = set()
        self._called = called
        run()
        self._called = None
        self._wait_until_quiet()
        return called

    def _wait_until_quiet(self) -> None:
        """Wait until the threads have finished what follows the end of a run."""
        for _ in range(MAX_QUIET_CHECKS):
            calls = self._calls
            time.sleep(QUIET_S)
            if self._calls == calls:
                return


def measure(folder: Path, repeats: int = REPEATS) -> dict[str, set[Function]]:
    """Return the functions that a warm job, and a warm durable function with one step, pass through."""
    recorder = Recorder()

    def path_of(run: Callable[[], object]) -> set[Function]:
        for _ in range(WARM_UPS):
            recorder.record(run)
        return set.intersection(*(recorder.record(run) for _ in range(repeats)))

    app = Holdfast(f"sqlite:///{folder}/runs.db")

    @app.task(name="job")
    async def job(n: int) -> int:
        return n + 1

    async def add(n: int) -> int:
        return n + 1

    @app.task(name="function")
    async def function(ctx: Context, n: int) -> int:
        return await ctx.step(add, n)

    before = sys.getprofile()
    threading.setprofile(recorder.profile)
    sys.setprofile(recorder.profile)
    try:
        with patch.object(claimer, "QUIET_PAUSE_S", 60.0), patch.object(results, "LISTEN_FROM_S", 60.0), app.worker():
            return {
                "job": path_of(lambda: job.enqueue(1).result()),
                "durable function with one step": path_of(lambda: function.enqueue(1).result()),
            }
    finally:
        sys.setprofile(before)
        threading.setprofile(before)
        app.close()


def files_of(functions: set[Function]) -> tuple[list[str], list[str]]:
    """Return the files of these functions: first all but those below `database/`, then those."""
    files = sorted({file for file, _ in functions})
    drivers = [file for file in files if file.startswith("database/")]
    return [file for file in files if file not in drivers], drivers


def describe(title: str, functions: set[Function], *, with_functions: bool = False) -> str:
    """List the files, with the number of functions or their names."""
    files, drivers = files_of(functions)
    by_file = {each: sorted(name for file, name in functions if file == each) for each in (*files, *drivers)}
    called = sum(len(by_file[file]) for file in files)
    lines = [f"{title}: {len(files)} files, {called} functions; {len(drivers)} files in database/"]
    for file, names in by_file.items():
        lines.append(f"  {file} ({len(names)})" + (f": {', '.join(names)}" if with_functions else ""))
    return "\n".join(lines)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for title, functions in measure(Path(folder)).items():
            print(describe(title, functions, with_functions="-v" in sys.argv))  # noqa: T201


if __name__ == "__main__":
    main()
