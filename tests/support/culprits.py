"""Tasks that harm the worker that runs them: they block its loop, hang its threads, hold its GIL or kill it.

Every kind harms each time it is attempted, and fails in the end by its own policy. `CULPRITS` says how.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast import Context, Holdfast, Retry

EXIT_CODE = 66
TASK_TIMEOUT_S = 0.5
ATTEMPTS = 2
CRASHES = 1
HARMLESS_S = 0.05
"""How long a culprit behaves before it does harm, so that it has neighbors."""

BLOCKS = "blocks the event loop"
HANGS = "hangs a thread"
KILLS = "kills its process"
HOLDS_GIL = "holds the GIL"
HARMS = (BLOCKS, HANGS, KILLS, HOLDS_GIL)

Harm = Callable[[str, str], None]
"""Records that the run with this mark is about to do harm of this kind."""


@dataclass(frozen=True)
class Culprit:
    """One kind of harm.

    `codes`: the error codes that its own policy leads to. `survives`: an outside fault, such as a frozen process, may
    let it succeed.
    """

    harm: str
    codes: tuple[str, ...]
    survives: bool = True


CULPRITS = {
    "block": Culprit(BLOCKS, ("crashed",)),
    "blocktimed": Culprit(BLOCKS, ("timeout",)),
    "hang": Culprit(HANGS, ("timeout",)),
    "hangstep": Culprit(HANGS, ("error",)),
    "exit": Culprit(KILLS, ("crashed",), survives=False),
    "segfault": Culprit(KILLS, ("crashed",), survives=False),
    "sigkill": Culprit(KILLS, ("crashed",), survives=False),
    "gil": Culprit(HOLDS_GIL, ("crashed",)),
}


def kinds_of(harm: str) -> list[str]:
    """Return the kinds that do this harm."""
    return [kind for kind, culprit in CULPRITS.items() if culprit.harm == harm]


def kind_of(mark: str | None) -> str:
    """Return the kind of a root or its descendant: marks are `kind-number`, with a suffix for descendants."""
    return (mark or "").split("-")[0]


def add_culprits(app: Holdfast, harm: Harm) -> dict[str, Any]:
    """Declare a task for each kind; all of them take a mark and the number of seconds that the harm lasts."""
    twice = Retry(max_attempts=ATTEMPTS, delay=0.1)
    once = Retry(max_attempts=1)

    @app.task(name="block", max_crashes=CRASHES, retry=once)
    async def block(mark: str, seconds: float) -> None:
        await asyncio.sleep(HARMLESS_S)
        harm(mark, "block")
        time.sleep(seconds)  # noqa: ASYNC251 - the harm

    @app.task(name="blocktimed", max_crashes=CRASHES, retry=twice, timeout=TASK_TIMEOUT_S)
    async def blocktimed(mark: str, seconds: float) -> None:
        await asyncio.sleep(HARMLESS_S)
        harm(mark, "blocktimed")
        time.sleep(seconds)  # noqa: ASYNC251 - the harm

    @app.task(name="hang", max_crashes=CRASHES, retry=twice, timeout=TASK_TIMEOUT_S)
    def hang(mark: str, seconds: float) -> None:
        harm(mark, "hang")
        time.sleep(seconds)

    @app.task(name="hangstep", max_crashes=CRASHES, retry=once)
    async def hangstep(ctx: Context, mark: str, seconds: float) -> None:
        step = partial(_hang_in_step, harm, mark, seconds)
        await ctx.step(step, name="hang", timeout=TASK_TIMEOUT_S, retry=twice)

    @app.task(name="exit", max_crashes=CRASHES, retry=once)
    async def exit_process(mark: str, seconds: float) -> None:
        await asyncio.sleep(HARMLESS_S)
        harm(mark, "exit")
        os._exit(EXIT_CODE)

    @app.task(name="segfault", max_crashes=CRASHES, retry=once)
    def segfault(mark: str, seconds: float) -> None:
        time.sleep(HARMLESS_S)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        harm(mark, "segfault")
        os.kill(os.getpid(), signal.SIGSEGV)
        time.sleep(seconds)  # the signal may come a little later, and the attempt must not end before

    @app.task(name="sigkill", max_crashes=CRASHES, retry=once)
    async def sigkill(mark: str, seconds: float) -> None:
        await asyncio.sleep(HARMLESS_S)
        harm(mark, "sigkill")
        os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(seconds)

    @app.task(name="gil", max_crashes=CRASHES, retry=once)
    def gil(mark: str, seconds: float) -> None:
        time.sleep(HARMLESS_S)
        harm(mark, "gil")
        hold_gil(seconds)

    tasks = (block, blocktimed, hang, hangstep, exit_process, segfault, sigkill, gil)
    return {task.name: task for task in tasks}


def _hang_in_step(harm: Harm, mark: str, seconds: float) -> None:
    harm(mark, "hangstep")
    time.sleep(seconds)


def hold_gil(seconds: float) -> None:
    """Sleep in C without releasing the GIL: no other thread of the process runs meanwhile."""
    ctypes.PyDLL(None).usleep(ctypes.c_uint(int(seconds * 1e6)))
