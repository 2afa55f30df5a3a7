"""Limits as users declare them, and the counters from which a call needs permits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from holdfast.errors import BadArguments, ConfigError
from holdfast.model.codec import canonical, decode, encode, has_secrets
from holdfast.model.interactive import is_interactive
from holdfast.model.names import check_name
from holdfast.policy.admission import Rate, parse_rate
from holdfast.task.signature import Signature
from holdfast.task.task import Request

MAX_CONCURRENCY = 1_000_000
MAX_KEY_LENGTH = 500


class DeclaredLimit(msgspec.Struct, frozen=True):
    """A limit as it was declared."""

    name: str
    concurrency: int | None
    rate: Rate | None
    by: str | Callable[..., object] | None


class DeclaredLimits:
    """The limits of an app, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, DeclaredLimit] = {}

    def declare(
        self, name: str, concurrency: int | None, rate: str | None, by: str | Callable[..., object] | None
    ) -> None:
        where = f"limit {check_name(name, 'the name of a limit')}"
        if concurrency is None and rate is None:
            raise ConfigError(f'{where} limits nothing: set concurrency=, rate= like "100/min", or both')
        if concurrency is not None and (
            isinstance(concurrency, bool) or not isinstance(concurrency, int) or not 1 <= concurrency <= MAX_CONCURRENCY
        ):
            raise ConfigError(
                f"{where}: concurrency must be an integer from 1 to {MAX_CONCURRENCY:,}, not {concurrency!r}"
            )
        if by is not None and not callable(by):
            check_name(by, f"{where}: by")
        limit = DeclaredLimit(name, concurrency, None if rate is None else parse_rate(rate, f"{where}: rate"), by)
        if self.by_name.get(name, limit) != limit and not is_interactive():
            raise ConfigError(f"{where} is declared twice, with different settings")
        self.by_name[name] = limit

    def __iter__(self) -> Iterator[DeclaredLimit]:
        return iter(list(self.by_name.values()))

    def __bool__(self) -> bool:
        return bool(self.by_name)

    def counters(self, request: Request[Any], pending: Iterable[str] = ()) -> list[tuple[str, str]]:
        """Return the limit names and keys from which a run needs permits.

        `pending` names parameters whose values come later and that can't be part of a key.
        """
        names = request.declaration.limits if request.options.limits is None else request.options.limits
        return [(name, self._key(self._get(name, request), request, set(pending))) for name in sorted(names)]

    def _get(self, name: str, request: Request[Any]) -> DeclaredLimit:
        if name not in self.by_name:
            known = f"; declared limits: {', '.join(self.by_name)}" if self.by_name else ""
            raise ConfigError(f"task {request.task}: limit {name!r} is not declared: add app.limit({name!r}, …){known}")
        return self.by_name[name]

    def _key(self, limit: DeclaredLimit, request: Request[Any], pending: set[str]) -> str:
        if limit.by is None:
            return ""
        where = f"limit {limit.name} of task {request.task}"
        if pending and (callable(limit.by) or limit.by.partition(".")[0] in pending):
            raise BadArguments(f"{where}: by= depends on the output of another node, which isn't known yet")
        value = (
            self._by_function(limit.by, request, where) if callable(limit.by) else _by_path(limit.by, request, where)
        )
        if has_secrets(encode(value, f"{where}: the value of by=")):
            raise BadArguments(
                f"{where}: by= is a secret, and the key of a limit is stored and displayed; use another argument, or a "
                "function that returns a keyed hash of it, such as hmac.new(key, value, 'sha256').hexdigest()"
            )
        key = canonical(value, f"{where}: the value of by=")
        if len(key) > MAX_KEY_LENGTH:
            raise BadArguments(
                f"{where}: the value of by= must have at most {MAX_KEY_LENGTH} characters of JSON, not {len(key):,}"
            )
        return key

    @staticmethod
    def _by_function(by: Callable[..., object], request: Request[Any], where: str) -> object:
        if not isinstance(request.signature, Signature):
            raise ConfigError(f"{where}: by= is a function and needs the task's code; use an argument's name instead")
        args, kwargs = request.signature.decode(request.signature.with_defaults(request.args))
        try:
            return by(*args, **kwargs)
        except Exception as error:
            raise BadArguments(f"{where}: the by= function raised {type(error).__name__}: {error}") from error


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
