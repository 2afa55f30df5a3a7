"""Support for methods that exist twice: a blocking one, and an awaitable one whose name starts with `a`.

asyncio takes longer to import than all of Holdfast, and a process that only enqueues needs no event loop. It is
therefore imported on first use.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def run_in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Await a blocking call in a thread of the running loop's executor."""
    import asyncio

    return await asyncio.to_thread(call, *args, **kwargs)
