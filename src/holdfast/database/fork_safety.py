"""Keep open connections safe when the process forks.

A child must neither use nor close its parent's connections: closing one ends the parent's session on the
server. The child therefore keeps them unclosed and opens its own. SQLite needs more: if a file is open during the fork,
the child's SQLite assumes locks that the child doesn't hold. SQLite connections are closed before the fork and reopened
on their next use.
"""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol


class ForkAware(Protocol):
    """An object with connections, or with locks that a thread may hold."""

    def before_fork(self) -> None: ...

    def after_fork(self, *, in_child: bool) -> None: ...


_registered: weakref.WeakSet[Any] = weakref.WeakSet()
_unclosed: list[Any] = []


def register_fork_hooks(thing: ForkAware) -> None:
    """Call the fork methods of `thing` around each fork, for as long as it exists."""
    _registered.add(thing)


def never_close(thing: object) -> None:
    """Keep a reference forever, so that garbage collection closes nothing."""
    _unclosed.append(thing)


def _before() -> None:
    for thing in list(_registered):
        thing.before_fork()


def _after(in_child: bool) -> None:
    for thing in list(_registered):
        thing.after_fork(in_child=in_child)


os.register_at_fork(
    before=_before, after_in_parent=lambda: _after(in_child=False), after_in_child=lambda: _after(in_child=True)
)
