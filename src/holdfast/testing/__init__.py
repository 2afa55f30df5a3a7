"""Test tools: an app on a private store with a virtual clock, contexts in memory, crash injection, fakes.

The `kit` fixture comes with the pytest plugin, the module `pytest_holdfast`. The library itself never imports this.
"""

from holdfast.model.virtual_clock import VirtualClock
from holdfast.testing.crash_injection import crash_at_every_step
from holdfast.testing.fakes import fake, fake_step
from holdfast.testing.in_memory_context import Restarted, context, sync_context
from holdfast.testing.kit import Kit

__all__ = [
    "Kit",
    "Restarted",
    "VirtualClock",
    "context",
    "crash_at_every_step",
    "fake",
    "fake_step",
    "sync_context",
]
