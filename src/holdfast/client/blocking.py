"""Every verb has two forms: the plain one blocks, the one with an `a` in front is awaited."""

from __future__ import annotations

import asyncio

from holdfast.errors import BlockingCall


def refuse_in_loop(verb: str, instead: str | None = None) -> None:
    """A blocking verb would stop the whole event loop for as long as the database takes."""
    if asyncio._get_running_loop() is not None:
        raise BlockingCall(f"{verb}() would block the running event loop; {instead or f'write `await …a{verb}(…)`'}")
