"""Ctrl-C, SIGTERM and SIGHUP end the demo in order: the first one counts, and nothing disturbs the clearing up."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """Raises KeyboardInterrupt at the first signal, or after what must not be broken off."""

    def __init__(self) -> None:
        self._held = False
        self._came = False
        for number in SIGNALS:
            signal.signal(number, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.ignore()
        self._came = True
        if not self._held:
            raise KeyboardInterrupt

    def ignore(self) -> None:
        """From now on nothing interrupts us: we are about to end."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let a signal wait until the end of the block."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._came:
            raise KeyboardInterrupt
