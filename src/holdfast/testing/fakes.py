"""`fake_step`: replace the function of a step in tests."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from holdfast.errors import ConfigError
from holdfast.task.functions import active_fakes, is_async
from holdfast.task.task import Task


class FakeCall(NamedTuple):
    """One call of a fake."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class FakeStep:
    """A fake for the function of a step.

    Attributes:
        calls: The arguments of each call, in order.
    """

    def __init__(self, step: Callable[..., Any] | str, answer: Callable[..., Any]) -> None:
        self._step = step
        self._answer = answer
        self.calls: list[FakeCall] = []

    def function_for(self, name: str, fn: Callable[..., Any]) -> Callable[..., Any] | None:
        known = name if isinstance(self._step, str) else fn
        if known != self._step and getattr(known, "__func__", known) != self._step:
            return None
        return self._awaited(fn) if is_async(fn) else self._plain(fn)

    def _awaited(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        @_like(fn)
        async def fake(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(FakeCall(args, kwargs))
            value = self._answer(*args, **kwargs)
            return await value if is_async(self._answer) else value

        return fake

    def _plain(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        @_like(fn)
        def fake(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(FakeCall(args, kwargs))
            return self._answer(*args, **kwargs)

        return fake


def _like(fn: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Copy the annotations of the replaced function, by which results are decoded."""
    return functools.wraps(getattr(fn, "__func__", fn))


@contextmanager
def fake_step(
    step: Callable[..., Any] | str,
    *,
    returns: Any = None,
    raises: BaseException | type[BaseException] | None = None,
    does: Callable[..., Any] | None = None,
) -> Iterator[FakeStep]:
    """Replace the function of a step inside a `with` block.

    Args:
        step: The step's function, or its name if it has an explicit one.
        returns: What the step returns.
        raises: What the step raises.
        does: A function to call with the step's arguments instead.

    Example:
        ```python
        with fake_step(charge, returns="payment-1") as fake:
            run = checkout.enqueue(order)
            kit.drain()
        assert fake.calls[0].args == (42,)
        ```
    """
    if isinstance(step, Task):
        step = step.fn or step.name
    if not isinstance(step, str) and not callable(step):
        raise ConfigError(f"fake_step takes a step's function or name, not {type(step).__name__}")
    if sum(given is not None for given in (returns, raises, does)) > 1:
        raise ConfigError("fake_step takes only one of returns=, raises= and does=")

    def answer(*_args: Any, **_kwargs: Any) -> Any:
        if raises is not None:
            raise raises
        return returns

    fake = FakeStep(step, answer if does is None else does)
    active_fakes.append(fake)
    try:
        yield fake
    finally:
        active_fakes.remove(fake)
