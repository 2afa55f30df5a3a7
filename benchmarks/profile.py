"""Where the processor's time goes: samples of all threads of our processes, as a flame graph.

A thread looks at the stacks of the others at intervals. A sample weighs what its thread has used of the processor since
the last one, so that waiting doesn't show; where the system doesn't tell that, it weighs the time that went by. What a
thread did between two looks is put down to where it is at the second, which may be a wait that has just begun. The
looking itself takes a few percent: figures of a profiled run aren't to be published.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

VARIABLE = "HOLDFAST_BENCH_PROFILE"
"""Set for the processes of a measurement: the folder for what they saw."""
INTERVAL = 0.004
IMPORTING = ("importlib._bootstrap", "_frozen_importlib")
"""What an import is made of says nothing, and is as high as a tower."""


@contextmanager
def profiled() -> Iterator[None]:
    """Sample this process for the length of the block, if it is asked for."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        yield
        return
    sampler = Sampler()
    sampler.start()
    try:
        yield
    finally:
        sampler.stop()
        (Path(folder) / f"{os.getpid()}.stacks").write_text(folded(sampler.stacks))


class Sampler(threading.Thread):
    """Looks at the other threads until it is stopped."""

    def __init__(self) -> None:
        super().__init__(name="bench-profile", daemon=True)
        self.stacks: Counter[tuple[str, ...]] = Counter()
        self._over = threading.Event()
        self._used: dict[int, int] = {}

    def run(self) -> None:
        last = time.perf_counter_ns()
        while not self._over.wait(INTERVAL):
            now = time.perf_counter_ns()
            self._look(now - last)
            last = now

    def stop(self) -> None:
        self._over.set()
        self.join()

    def _look(self, passed: int) -> None:
        frames = sys._current_frames()
        for thread in threading.enumerate():
            frame = frames.get(thread.ident or 0)
            if frame is None or thread is self or thread.native_id is None:
                continue
            used = _used_by(thread.native_id)
            weight = passed if used is None else used - self._used.get(thread.native_id, used)
            if used is not None:
                self._used[thread.native_id] = used
            if weight > 0:
                self.stacks[(thread.name, *_names(frame))] += weight


def _used_by(native_id: int) -> int | None:
    """Nanoseconds that a thread of ours has been on a processor."""
    try:
        return int(Path(f"/proc/self/task/{native_id}/schedstat").read_bytes().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _names(frame: FrameType | None) -> list[str]:
    names = []
    while frame is not None:
        module = frame.f_globals.get("__name__", "?")
        if not module.startswith(IMPORTING):
            names.append(f"{module}.{frame.f_code.co_qualname}".replace(";", ","))
        frame = frame.f_back
    return names[::-1]


def folded(stacks: Counter[tuple[str, ...]]) -> str:
    """A line per stack: its frames from the outside in, and its microseconds."""
    return "".join(f"{';'.join(stack)} {weight // 1000}\n" for stack, weight in stacks.items() if weight >= 1000)


def gathered(folder: Path) -> Counter[tuple[str, ...]]:
    """What all processes saw."""
    stacks: Counter[tuple[str, ...]] = Counter()
    for file in sorted(folder.glob("*.stacks")):
        for line in file.read_text().splitlines():
            stack, _, micros = line.rpartition(" ")
            stacks[tuple(stack.split(";"))] += int(micros)
    return stacks
