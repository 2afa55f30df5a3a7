"""`Retry`: how often and when a failed attempt is retried. `policy/retry_decision.py` computes the delays."""

from __future__ import annotations

import math
from collections.abc import Callable
from inspect import iscoroutinefunction, signature
from typing import Any, TypeAlias

from holdfast.errors import ConfigError
from holdfast.model.clock import MICROS_PER_SECOND, Duration, to_micros
from holdfast.model.names import dotted_name

ExceptionTypes: TypeAlias = type[Exception] | tuple[type[Exception], ...]

_FIELDS = ("max_attempts", "delay_micros", "factor", "max_delay_micros", "jitter", "on", "never_on", "retry_if")
_DEFAULTS: dict[str, Any] = {"max_attempts": 10, "delay": 2, "factor": 2, "max_delay": 600, "jitter": 1}
_DEFAULTS_IN_IDENTITY = {"max_attempts": 3, "delay": 1_000_000, "factor": 2.0, "max_delay": 300_000_000, "jitter": 0.25}
"""Those of release 0.1, as stored. The identity of a child or a keyed request includes its options: it must stay the
same for the same code."""


class Retry:
    """The number of attempts, including the first, and the delays between them. Immutable.

    By default there are ten attempts over about fifteen minutes. The failure of a child is final: it is retried only if
    `on` names `RunFailed` or `RunCancelled` itself. The timeout of a durable wait is recorded: the next attempt waits
    again only if `on` names `WaitTimeout` itself.

    Args:
        max_attempts: All attempts, including the first. Defaults to 10.
        delay: The delay before the second attempt. Defaults to 2 seconds.
        factor: By how much each further delay grows. Defaults to 2.
        max_delay: The upper bound of the delays. Defaults to 10 minutes.
        jitter: Each delay is randomized by plus or minus this share of it. Defaults to 1, full jitter: a delay is
            between 0 and twice its value, at most `max_delay`.
        on: Only exceptions of these classes are retried. Defaults to all.
        never_on: Exceptions of these classes are not retried.
        retry_if: Called with each exception that would be retried; it isn't if the result is false. It is code, which
            isn't stored with runs: use it for tasks, states and steps, not in `task.options(retry=…)`. If it raises,
            the exception is retried.
    """

    __slots__ = (*_FIELDS, "_defaulted")

    max_attempts: int
    delay_micros: int
    factor: float
    max_delay_micros: int
    jitter: float
    on: tuple[str, ...] | None
    never_on: tuple[str, ...]
    retry_if: Callable[[Any], object] | None
    _defaulted: tuple[str, ...]
    """The settings that were not given."""

    def __init__(
        self,
        max_attempts: int | None = None,
        delay: Duration | None = None,
        factor: float | None = None,
        max_delay: Duration | None = None,
        jitter: float | None = None,
        on: ExceptionTypes | None = None,
        never_on: ExceptionTypes | None = None,
        retry_if: Callable[[Any], object] | None = None,
    ) -> None:
        given = {
            "max_attempts": max_attempts, "delay": delay, "factor": factor, "max_delay": max_delay, "jitter": jitter,
        }  # fmt: skip
        values = {name: _DEFAULTS[name] if value is None else value for name, value in given.items()}
        put = object.__setattr__
        put(self, "max_attempts", _attempts(values["max_attempts"]))
        put(self, "delay_micros", to_micros(values["delay"], "Retry: delay"))
        put(self, "factor", _number(values["factor"], "factor", 1, 1_000_000))
        put(self, "max_delay_micros", to_micros(values["max_delay"], "Retry: max_delay"))
        put(self, "jitter", _number(values["jitter"], "jitter", 0, 1))
        put(self, "_defaulted", tuple(name for name, value in given.items() if value is None))
        put(self, "on", None if on is None else _names_of(on, "on"))
        put(self, "never_on", () if never_on is None else _names_of(never_on, "never_on"))
        if retry_if is not None and (not callable(retry_if) or iscoroutinefunction(retry_if)):
            raise ConfigError(f"Retry: retry_if must be a plain function of the exception, not {retry_if!r}")
        if retry_if is not None:
            _check_predicate(retry_if)
        put(self, "retry_if", retry_if)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Retry is immutable; create a new one instead of setting {name}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"Retry is immutable; create a new one instead of deleting {name}")

    def retryable(self, exception: BaseException) -> bool:
        """Return whether `on`, `never_on` and `retry_if` allow a retry after this exception."""
        if self.on is not None or self.never_on:
            names = {dotted_name(kind) for kind in type(exception).__mro__}
            if not names.isdisjoint(self.never_on) or (self.on is not None and names.isdisjoint(self.on)):
                return False
        return self.retry_if is None or self.accepts(exception)

    def accepts(self, exception: BaseException) -> bool:
        """Return whether `retry_if` allows a retry. What it raises is noted in the traceback of the exception."""
        if self.retry_if is None:
            return True
        try:
            return bool(self.retry_if(exception))
        except Exception as error:
            exception.add_note(f"retry_if raised {type(error).__name__}, so that the exception is retried")
            return True

    def names(self, *kinds: type[BaseException]) -> bool:
        """Return whether `on` names one of these classes itself, not only a base class."""
        return self.on is not None and any(dotted_name(kind) in self.on for kind in kinds)

    def to_json(self) -> dict[str, Any]:
        """Return plain data for storage with a run, without `retry_if`."""
        return {
            "max_attempts": self.max_attempts,
            "delay": self.delay_micros,
            "factor": self.factor,
            "max_delay": self.max_delay_micros,
            "jitter": self.jitter,
            "on": None if self.on is None else list(self.on),
            "never_on": list(self.never_on),
        }

    def identity(self) -> dict[str, Any]:
        """Return plain data for digests: the same for the same code, whatever the defaults of the release are."""
        return {**self.to_json(), **{name: _DEFAULTS_IN_IDENTITY[name] for name in self._defaulted}}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Retry:
        """Restore a Retry from `to_json`, perhaps of another release: ignore unknown fields, default missing ones."""
        retry = cls()
        stored = {
            "max_attempts": data.get("max_attempts"),
            "delay_micros": data.get("delay"),
            "factor": data.get("factor"),
            "max_delay_micros": data.get("max_delay"),
            "jitter": data.get("jitter"),
        }
        for name, value in stored.items():  # validated when it was created
            if isinstance(value, int | float):
                object.__setattr__(retry, name, value)
        on = data.get("on")
        object.__setattr__(retry, "on", None if on is None else tuple(on))
        object.__setattr__(retry, "never_on", tuple(data.get("never_on") or ()))
        object.__setattr__(retry, "_defaulted", ())
        return retry

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.to_json(), self._defaulted, self.retry_if)

    def __eq__(self, other: object) -> bool:
        return self._values() == other._values() if isinstance(other, Retry) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        filters = f", on={self.on!r}" if self.on is not None else ""
        filters += f", never_on={self.never_on!r}" if self.never_on else ""
        filters += f", retry_if={self.retry_if!r}" if self.retry_if is not None else ""
        return (
            f"Retry(max_attempts={self.max_attempts}, delay={self.delay_micros / MICROS_PER_SECOND:g}, "
            f"factor={self.factor:g}, max_delay={self.max_delay_micros / MICROS_PER_SECOND:g}, "
            f"jitter={self.jitter:g}{filters})"
        )

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in _FIELDS)


def _restored(
    data: dict[str, Any], defaulted: tuple[str, ...], retry_if: Callable[[Any], object] | None = None
) -> Retry:
    retry = Retry.from_json(data)
    object.__setattr__(retry, "retry_if", retry_if)
    object.__setattr__(retry, "_defaulted", defaulted)
    return retry


def _check_predicate(predicate: Callable[..., Any]) -> None:
    """Raise unless a function can be called with one argument. It would raise for each exception otherwise."""
    try:
        parameters = signature(predicate)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        parameters.bind(ValueError())
    except TypeError as error:
        name = getattr(predicate, "__qualname__", repr(predicate))
        raise ConfigError(
            f"Retry: retry_if is called with one argument, the exception, and {name}{parameters} takes others: {error}"
        ) from None


def _attempts(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"Retry: max_attempts must be an int, not {type(value).__name__}")
    if not 1 <= value <= 1_000_000_000:
        raise ConfigError(f"Retry: max_attempts counts all attempts, from 1 to 10**9, but is {value}")
    return value


def _number(value: Any, name: str, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ConfigError(f"Retry: {name} must be a finite number, not {value!r}")
    if not low <= value <= high:
        raise ConfigError(f"Retry: {name} must be between {low:,} and {high:,}, not {value}")
    return float(value)


def _names_of(kinds: Any, name: str) -> tuple[str, ...]:
    classes = kinds if isinstance(kinds, tuple) else (kinds,)
    for kind in classes:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise ConfigError(f"Retry: {name} must be an exception class or a tuple of them, not {kind!r}")

    return tuple(sorted({dotted_name(kind) for kind in classes}))
