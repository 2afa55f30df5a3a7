"""Calls of clients that are part of the caller's transaction, on the caller's own connection: `connection=`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from holdfast.database.caller_connection import (
    FOREIGN_SQLITE,
    AsyncCallerConnection,
    BridgedConnection,
    CallerConnection,
    DjangoConnection,
    wrap_connection,
)
from holdfast.errors import ConfigError
from holdfast.model.blocking_calls import run_in_thread
from holdfast.store import Store

T = TypeVar("T")


def borrow(store: Store, connection: object) -> CallerConnection | AsyncCallerConnection | None:
    """Wrap the caller's connection for the store; None without one, or for the one of `app.transaction()`."""
    if connection is None:
        return None
    if store.database.dialect.name != "sqlite":
        return wrap_connection(connection, store.database.django_alias)
    if not store.database.is_user_transaction(connection):
        raise ConfigError(FOREIGN_SQLITE)
    return None  # All calls of this thread are part of that transaction.


def blocking(store: Store, connection: object, verb: str) -> CallerConnection | None:
    """Wrap the caller's connection for a blocking call."""
    borrowed = borrow(store, connection)
    if isinstance(borrowed, AsyncCallerConnection):
        raise ConfigError(f"connection= is an async connection: use `await …a{verb}(…)` with it")
    return borrowed


async def call_with(store: Store, connection: object, verb: str, call: Callable[[CallerConnection | None], T]) -> T:
    """Make a blocking call in another thread, which executes its statements on the caller's async connection."""
    if connection is None:
        return await run_in_thread(call, None)
    borrowed = borrow(store, connection)
    if isinstance(borrowed, DjangoConnection):
        return await borrowed.in_its_thread(call, borrowed)
    if not isinstance(borrowed, AsyncCallerConnection):
        raise ConfigError(f"connection= is a blocking connection: use {verb}() with it, or pass an async one")
    import asyncio

    bridged = BridgedConnection(borrowed, asyncio.get_running_loop())
    done = asyncio.ensure_future(run_in_thread(call, bridged))
    try:
        return await asyncio.shield(done)
    except asyncio.CancelledError:
        bridged.close()  # The connection is free for the caller's rollback once the thread has stopped.
        await asyncio.wait([done])
        if not done.cancelled():
            done.exception()
        raise
