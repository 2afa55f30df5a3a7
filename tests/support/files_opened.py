"""Count the source files and functions that one run passes through: `python -m tests.support.files_opened [-v]`.

One process holds an app on SQLite and its worker. After a warm-up, the script enqueues one job and waits for its
result, then the same for a durable function with one step, `REPEATS` times each, under a profiler. It counts:

* calls between the start of `enqueue` and the return of `result`, in every one of the repetitions,
* in the threads through which the run passes: the caller, the claimer, the event loop and the committer. Other loops
  wake up because of the commit, but the run doesn't pass through them.
* of named functions (no comprehensions and lambdas) of `src/holdfast`. Files below `database/` are counted apart: every
  statement passes through the same ones.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import holdfast
from holdfast import Context, Holdfast

SOURCE = str(Path(holdfast.__file__).parent)
THREADS = {"MainThread", "holdfast-claimer", "holdfast-loop", "holdfast-committer"}
REPEATS = 20
WARM_UPS = 5
PAUSE_S = 0.05

Function = tuple[str, str]


class Recorder:
    """Records the functions of holdfast that any thread calls while it is switched on."""

    def __init__(self) -> None:
        self._called: set[Function] | None = None

    def profile(self, frame: FrameType, event: str, _arg: Any) -> None:
        called, code = self._called, frame.f_code
        if called is None or event != "call" or not code.co_filename.startswith(SOURCE) or code.co_name[0] == "<":
            return
        if threading.current_thread().name in THREADS:
            called.add((code.co_filename.removeprefix(SOURCE + "/"), code.co_qualname))

    def record(self, run: Any) -> set[Function]:
        """Return the functions that are called while `run` runs."""
        called: set[Function] = set()
        self._called = called
        run()
        self._called = None
        return called


def path_of(recorder: Recorder, run: Any) -> set[Function]:
    """Return the functions that every one of several warm repetitions of `run` calls."""
    for _ in range(WARM_UPS):
        run()
        time.sleep(PAUSE_S)
    seen = []
    for _ in range(REPEATS):
        seen.append(recorder.record(run))
        time.sleep(PAUSE_S)
    return set.intersection(*seen)


def show(title: str, functions: set[Function]) -> None:
    files = Counter(file for file, _ in functions)
    drivers = [file for file in files if file.startswith("database/")]
    called = sum(files.values()) - sum(files[file] for file in drivers)
    print(f"{title}: {len(files) - len(drivers)} files, {called} functions; {len(drivers)} files in database/")  # noqa: T201
    for file, count in sorted(files.items()):
        names = ", ".join(sorted(name for path, name in functions if path == file))
        print(f"  {file} ({count}): {names}" if "-v" in sys.argv else f"  {file} ({count})")  # noqa: T201


def main() -> None:
    recorder = Recorder()
    threading.setprofile(recorder.profile)
    sys.setprofile(recorder.profile)
    with tempfile.TemporaryDirectory() as folder:
        app = Holdfast(f"sqlite:///{folder}/runs.db")

        @app.task(name="job")
        async def job(n: int) -> int:
            return n + 1

        async def add(n: int) -> int:
            return n + 1

        @app.task(name="function")
        async def function(ctx: Context, n: int) -> int:
            return await ctx.step(add, n)

        with app.worker():
            show("job", path_of(recorder, lambda: job.enqueue(1).result()))
            show("durable function with one step", path_of(recorder, lambda: function.enqueue(1).result()))
        app.close()


if __name__ == "__main__":
    main()
