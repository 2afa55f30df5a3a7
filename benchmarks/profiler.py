"""A sampling profiler for the CPU time of Holdfast's processes; `charts.py` draws its output as a flame graph.

A thread samples the stacks of all other threads at intervals. Each sample is weighted by the CPU time that its thread
used since the last one, so waiting doesn't show up; where the system doesn't report CPU time, the weight is the elapsed
time. Work between two samples is attributed to the function that runs at the second one, which may be a wait that has
just begun. Sampling costs a few percent, so results of profiled runs can't be published.
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
"""Names the folder to which child processes write their samples."""
INTERVAL_S = 0.004
IMPORT_MODULES = ("importlib._bootstrap", "_frozen_importlib")
"""Left out of stacks: the frames of an import are many and carry no information."""


@contextmanager
def profile_process() -> Iterator[None]:
    """Sample this process for the duration of the block, if profiling is enabled."""
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
        (Path(folder) / f"{os.getpid()}.stacks").write_text(format_stacks(sampler.stacks))


class Sampler(threading.Thread):
    """Samples all other threads until it is stopped."""

    def __init__(self) -> None:
        super().__init__(name="bench-profile", daemon=True)
        self.stacks: Counter[tuple[str, ...]] = Counter()
        self._stopped = threading.Event()
        self._cpu_ns: dict[int, int] = {}

    def run(self) -> None:
        last = time.perf_counter_ns()
        while not self._stopped.wait(INTERVAL_S):
            now = time.perf_counter_ns()
            self._sample(now - last)
            last = now

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def _sample(self, elapsed_ns: int) -> None:
        frames = sys._current_frames()
        for thread in threading.enumerate():
            frame = frames.get(thread.ident or 0)
            if frame is None or thread is self or thread.native_id is None:
                continue
            cpu_ns = _thread_cpu_ns(thread.native_id)
            weight = elapsed_ns if cpu_ns is None else cpu_ns - self._cpu_ns.get(thread.native_id, cpu_ns)
            if cpu_ns is not None:
                self._cpu_ns[thread.native_id] = cpu_ns
            if weight > 0:
                self.stacks[(thread.name, *_function_names(frame))] += weight


def _thread_cpu_ns(native_id: int) -> int | None:
    """Return the CPU time of a thread of this process, or None if the system doesn't report it."""
    try:
        return int(Path(f"/proc/self/task/{native_id}/schedstat").read_bytes().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _function_names(frame: FrameType | None) -> list[str]:
    names = []
    while frame is not None:
        module = frame.f_globals.get("__name__", "?")
        if not module.startswith(IMPORT_MODULES):
            names.append(f"{module}.{frame.f_code.co_qualname}".replace(";", ","))
        frame = frame.f_back
    return names[::-1]


def format_stacks(stacks: Counter[tuple[str, ...]]) -> str:
    """Return a line per stack: its frames, outermost first, and its microseconds."""
    return "".join(f"{';'.join(stack)} {weight // 1000}\n" for stack, weight in stacks.items() if weight >= 1000)


def read_stacks(folder: Path) -> Counter[tuple[str, ...]]:
    """Add up the samples of all processes."""
    stacks: Counter[tuple[str, ...]] = Counter()
    for file in sorted(folder.glob("*.stacks")):
        for line in file.read_text().splitlines():
            stack, _, micros = line.rpartition(" ")
            stacks[tuple(stack.split(";"))] += int(micros)
    return stacks
