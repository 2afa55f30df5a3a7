"""What tests need: an app on a private store, a clock to be moved, contexts without a store, crashes, fakes.

The fixture `kit` comes with the pytest plugin, the module `pytest_holdfast`. Never imported by the rest of the library.
"""

from holdfast.model.virtual_clock import VirtualClock
from holdfast.testing.crash_injection import crash_at_every_step
from holdfast.testing.fakes import fake_step
from holdfast.testing.in_memory_context import Restarted, context, sync_context
from holdfast.testing.kit import Kit

__all__ = ["Kit", "Restarted", "VirtualClock", "context", "crash_at_every_step", "fake_step", "sync_context"]
