"""DeclaredLimits as authors declare them, and which of their counters a call needs a permit of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from holdfast.errors import BadArguments, ConfigError
from holdfast.model.codec import canonical, decode
from holdfast.model.names import check_name
from holdfast.policy.admission import Rate, parse_rate
from holdfast.task.signature import Signature
from holdfast.task.task import Request

MOST_AT_ONCE = 1_000_000
LONGEST_KEY = 500


class DeclaredLimit(msgspec.Struct, frozen=True):
    """What was said about a limit."""

    name: str
    concurrency: int | None
    rate: Rate | None
    by: str | Callable[..., object] | None


class DeclaredLimits:
    """The limits of an app, by name."""

    def __init__(self) -> None:
        self._limits: dict[str, DeclaredLimit] = {}

    def declare(
        self, name: str, concurrency: int | None, rate: str | None, by: str | Callable[..., object] | None
    ) -> None:
        where = f"limit {check_name(name, 'the name of a limit')}"
        if concurrency is None and rate is None:
            raise ConfigError(f'{where} limits nothing: give it concurrency=, or rate= like "100/min", or both')
        if concurrency is not None and (
            isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= MOST_AT_ONCE
        ):
            raise ConfigError(
                f"{where}: concurrency must be a number from 1 to {MOST_AT_ONCE:,}, but is {concurrency!r}"
            )
        if by is not None and not callable(by):
            check_name(by, f"{where}: by")
        made = DeclaredLimit(name, concurrency, None if rate is None else parse_rate(rate, f"{where}: rate"), by)
        if self._limits.get(name, made) != made:
            raise ConfigError(f"{where} is declared twice, with different settings")
        self._limits[name] = made

    def __iter__(self) -> Iterator[DeclaredLimit]:
        return iter(list(self._limits.values()))

    def __bool__(self) -> bool:
        return bool(self._limits)

    def counters(self, request: Request[Any], waiting: Iterable[str] = ()) -> list[tuple[str, str]]:
        """The counters that a call needs permits of: the name of each limit, and the key. `waiting`: parameters that
        are filled in later, by which no key can be told."""
        names = request.declaration.limits if request.options.limits is None else request.options.limits
        return [(name, self._key(self._get(name, request), request, set(waiting))) for name in sorted(names)]

    def _get(self, name: str, request: Request[Any]) -> DeclaredLimit:
        if name not in self._limits:
            known = f"; declared are {', '.join(self._limits)}" if self._limits else ""
            raise ConfigError(
                f"task {request.task} has the limit {name!r}, which isn't declared: write app.limit({name!r}, …){known}"
            )
        return self._limits[name]

    def _key(self, limit: DeclaredLimit, request: Request[Any], waiting: set[str]) -> str:
        if limit.by is None:
            return ""
        where = f"limit {limit.name} of task {request.task}"
        if waiting and (callable(limit.by) or limit.by.partition(".")[0] in waiting):
            raise BadArguments(f"{where}: by= looks at an argument that is the output of another node, not known yet")
        value = (
            self._by_function(limit.by, request, where) if callable(limit.by) else _by_path(limit.by, request, where)
        )
        key = canonical(value, f"{where}: what by= gives")
        if len(key) > LONGEST_KEY:
            raise BadArguments(
                f"{where}: what by= gives may have {LONGEST_KEY} characters of JSON, but has {len(key):,}"
            )
        return key

    @staticmethod
    def _by_function(by: Callable[..., object], request: Request[Any], where: str) -> object:
        if not isinstance(request.signature, Signature):
            raise ConfigError(f"{where}: by= is a function, which needs the task's code; give the name of an argument")
        args, kwargs = request.signature.decode(request.signature.with_defaults(request.args))
        try:
            return by(*args, **kwargs)
        except Exception as error:
            raise BadArguments(f"{where}: the function given as by= raised {type(error).__name__}: {error}") from error


def _by_path(by: str, request: Request[Any], where: str) -> object:
    value: Any = decode(request.signature.with_defaults(request.args))
    for part in by.split("."):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise BadArguments(f"{where}: by={by!r} finds nothing at {part!r} in the arguments")
    return value
