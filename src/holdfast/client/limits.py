"""`Limits`: inspect limits and change what they allow at run time, from `app.limits`."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from holdfast.model.blocking_calls import run_in_thread
from holdfast.model.limit import LimitInfo
from holdfast.store.limit_settings import LimitSettings
from holdfast.task.scope import refuse_in_body, reject_in_event_loop

if TYPE_CHECKING:
    from holdfast.client.client import Client

INSTEAD = "call it inside a step"


class Limits:
    """The limits of the database, from `app.limits`. Changes take effect on all workers within a second.

    Values that are set here count instead of those that the code declares with `app.limit`, also after a deploy, until
    they are reset. Methods that start with `a` are awaitable.

    Example:
        ```python
        app.limits.set("tokens", rate="200000/min")
        app.limits.reset("tokens")
        ```
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    @property
    def _settings(self) -> LimitSettings:
        return LimitSettings(self._client.store)

    def list(self) -> builtins.list[LimitInfo]:
        """Return all limits with their usage, by name."""
        reject_in_event_loop("list", "use `await app.limits.alist()`")
        return self._settings.list()

    async def alist(self) -> builtins.list[LimitInfo]:
        """Return all limits with their usage, by name."""
        return await run_in_thread(self._settings.list)

    def get(self, name: str) -> LimitInfo:
        """Return one limit with its usage.

        Raises:
            ConfigError: The limit doesn't exist.
        """
        reject_in_event_loop("get", "use `await app.limits.aget(…)`")
        return self._settings.list(name)[0]

    async def aget(self, name: str) -> LimitInfo:
        """Return one limit with its usage."""
        return (await run_in_thread(self._settings.list, name))[0]

    def set(
        self,
        name: str,
        *,
        rate: str | UnsetType | None = UNSET,
        concurrency: int | UnsetType | None = UNSET,
        by: str | None = None,
    ) -> LimitInfo:
        """Set what a limit allows, until it is reset.

        Args:
            name: A limit that code has declared.
            rate: Starts per period, or their cost, like `"100/min"`. None removes the bound; if left out, it stays.
            concurrency: How many may execute at the same time. None removes the bound; if left out, it stays.
            by: Who sets it. Defaults to the user of this process.

        Raises:
            ConfigError: The limit doesn't exist, or a value is invalid.
        """
        refuse_in_body("limits.set", INSTEAD)
        reject_in_event_loop("set", "use `await app.limits.aset(…)`")
        return self._settings.set(name, rate=rate, concurrency=concurrency, by=by)

    async def aset(
        self,
        name: str,
        *,
        rate: str | UnsetType | None = UNSET,
        concurrency: int | UnsetType | None = UNSET,
        by: str | None = None,
    ) -> LimitInfo:
        """Set what a limit allows, until it is reset."""
        refuse_in_body("limits.aset", INSTEAD)
        return await run_in_thread(self._settings.set, name, rate=rate, concurrency=concurrency, by=by)

    def reset(self, name: str) -> LimitInfo:
        """Return a limit to what the code declares.

        Raises:
            ConfigError: The limit doesn't exist.
        """
        refuse_in_body("limits.reset", INSTEAD)
        reject_in_event_loop("reset", "use `await app.limits.areset(…)`")
        return self._settings.reset(name)

    async def areset(self, name: str) -> LimitInfo:
        """Return a limit to what the code declares."""
        refuse_in_body("limits.areset", INSTEAD)
        return await run_in_thread(self._settings.reset, name)
