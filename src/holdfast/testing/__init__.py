"""What tests need: an app on a private store, a clock to be moved, contexts without a store, crashes, fakes.

The fixture `kit` comes with the pytest plugin, the module `pytest_holdfast`. Never imported by the rest of the library.
"""

from holdfast.model.virtual_clock import VirtualClock
from holdfast.testing.direct import Restarted, context, sync_context
from holdfast.testing.fakes import fake_step
from holdfast.testing.kit import Kit
from holdfast.testing.marks import crash_at_every_step

__all__ = ["Kit", "Restarted", "VirtualClock", "context", "crash_at_every_step", "fake_step", "sync_context"]
