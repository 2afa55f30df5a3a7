"""Calls the author's functions around the work of one worker."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from holdfast.engine.aside import aside
from holdfast.engine.hooks import Hook, Hooks
from holdfast.errors import ConfigError
from holdfast.telemetry import log

NOTHING = object()


class Lifespan:
    """Runs the hooks of one worker: those at the start in order, those at the stop in reverse."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._open: list[Iterator[Any] | AsyncIterator[Any]] = []

    async def start(self) -> None:
        """What a start hook yields is kept in `resources`: a mapping as it is, anything else under the hook's name."""
        for hook in self._hooks.on_start:
            if inspect.isasyncgenfunction(hook):
                stream = hook()
                self._keep(hook, await anext(stream, NOTHING))
                self._open.append(stream)
            elif inspect.isgeneratorfunction(hook):
                generator = hook()
                self._keep(hook, await aside(next, generator, NOTHING))
                self._open.append(generator)
            else:
                await _call(hook)

    def _keep(self, hook: Hook, value: Any) -> None:
        if value is NOTHING:
            raise ConfigError(f"the on_start function {hook.__name__} ended without a yield")
        if isinstance(value, Mapping):
            self._hooks.resources.update(value)
        elif value is not None:
            self._hooks.resources[hook.__name__] = value

    async def stop(self) -> None:
        """Run the stop hooks, then what stands after the yield of start hooks. One that raises doesn't keep others."""
        for hook in reversed(self._hooks.on_stop):
            try:
                await _call(hook)
            except Exception:
                log.hook_failed(f"on_stop {hook.__name__}")
        await self.abort()

    async def abort(self) -> None:
        """Run what stands after the yield of the start hooks that got so far."""
        while self._open:
            opened = self._open.pop()
            try:
                if isinstance(opened, AsyncIterator):
                    await anext(opened, None)
                else:
                    await aside(next, opened, None)
            except Exception:
                log.hook_failed("on_start, after its yield,")


async def _call(hook: Hook) -> None:
    """Coroutines on the loop, plain functions in a thread: they may block, and may use the blocking verbs."""
    if inspect.iscoroutinefunction(hook):
        await hook()
    else:
        await aside(hook)
