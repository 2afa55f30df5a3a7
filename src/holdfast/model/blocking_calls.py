"""Support for methods that exist twice: a blocking one, and an awaitable one whose name starts with `a`.

asyncio takes longer to import than all of Holdfast, and a process that only enqueues needs no event loop. It is
therefore imported on first use.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from holdfast.errors import BlockingCall

P = ParamSpec("P")
T = TypeVar("T")


def reject_in_event_loop(verb: str, instead: str | None = None) -> None:
    """Raise BlockingCall if an event loop runs in this thread, which the call would block."""
    asyncio = sys.modules.get("asyncio.events")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        raise BlockingCall(f"{verb}() would block the running event loop; {instead or f'use `await …a{verb}(…)`'}")


async def run_in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Await a blocking call in a thread of the running loop's executor."""
    import asyncio

    return await asyncio.to_thread(call, *args, **kwargs)
