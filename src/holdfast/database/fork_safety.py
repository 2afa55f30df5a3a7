"""What happens to open connections when the process forks.

A child must not use its parent's connections, and must not close them either: closing says goodbye to the server in
the parent's name. So it leaves them alone and opens its own. SQLite is stricter: a file that is open while the process
forks is believed to be locked by the child too, which it isn't; there, connections are closed before the fork and
opened again when they are needed.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol


class ForkAware(Protocol):
    """Something with connections, or with locks that a thread may hold."""

    def before_fork(self) -> None: ...

    def after_fork(self, *, in_child: bool) -> None: ...


_known: weakref.WeakSet[Any] = weakref.WeakSet()
_abandoned: list[Any] = []  # kept for ever, so that nothing closes them


def register_fork_hooks(thing: ForkAware) -> None:
    """Tell it of forks, for as long as it lives."""
    _known.add(thing)


def never_close(thing: object) -> None:
    """Leave it alone for ever, unclosed."""
    _abandoned.append(thing)


def _before() -> None:
    for thing in list(_known):
        thing.before_fork()


def _after(in_child: bool) -> None:
    for thing in list(_known):
        thing.after_fork(in_child=in_child)


os.register_at_fork(
    before=_before, after_in_parent=lambda: _after(in_child=False), after_in_child=lambda: _after(in_child=True)
)
