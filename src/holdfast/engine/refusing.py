"""How a closed context refuses: it cancels whoever asks; whoever catches that for ever is left where he is."""

from __future__ import annotations

import asyncio
from typing import NoReturn

MOST_REFUSALS = 10_000


class Refusal:
    """What the closed context of one attempt answers."""

    __slots__ = ("_times",)

    def __init__(self) -> None:
        self._times = 0

    async def answer(self) -> NoReturn:
        """A loop without an end that catches even this would keep the event loop from all other runs."""
        self._times += 1
        if self._times > MOST_REFUSALS:
            await asyncio.get_running_loop().create_future()
        raise asyncio.CancelledError("the run is suspended or over; its context can't be used any more")
