"""Every verb has two forms: the plain one blocks, the one with an `a` in front is awaited.

A process that only declares or enqueues needs no event loop, and asyncio takes longer to import than all of Holdfast:
what is awaited imports it then, when somebody else long has.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from holdfast.errors import BlockingCall

P = ParamSpec("P")
T = TypeVar("T")


def reject_in_event_loop(verb: str, instead: str | None = None) -> None:
    """A blocking verb would stop the whole event loop for as long as the database takes."""
    asyncio = sys.modules.get("asyncio.events")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        raise BlockingCall(f"{verb}() would block the running event loop; {instead or f'write `await …a{verb}(…)`'}")


async def run_in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Await a blocking call, which a thread of the running loop makes."""
    import asyncio

    return await asyncio.to_thread(call, *args, **kwargs)
