"""Limits as users declare them, and the permits that a call or a step needs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from holdfast.errors import BadArguments, ConfigError
from holdfast.model.codec import canonical, decode, encode, has_secrets
from holdfast.model.interactive import is_interactive
from holdfast.model.names import check_name
from holdfast.policy.admission import MAX_RATE, Rate, check_bounds, check_cost
from holdfast.task.signature import Signature
from holdfast.task.task import Request

MAX_KEY_LENGTH = 500

Rule: TypeAlias = str | Callable[..., object]
"""The name or dotted path of an argument, or a function of the arguments."""
Cost: TypeAlias = Rule | int | float


@dataclass(frozen=True)
class EstimatedCost:
    """A cost that an integration estimates: unlike that of a caller, it may be given where no limit counts costs."""

    cost: int

    def __call__(self, *_args: object, **_kwargs: object) -> int:
        return self.cost


class DeclaredLimit(msgspec.Struct, frozen=True):
    """A limit as it was declared."""

    name: str
    concurrency: int | None
    rate: Rate | None
    by: Rule | None
    cost: Cost | None = None


class NeededPermit(NamedTuple):
    """A permit that a run or step needs: of which limit and key, and its cost if the limit is weighted."""

    limit: DeclaredLimit
    key: str
    cost: int | None


class Arguments(Protocol):
    """The arguments of a call, from which keys and costs are taken."""

    where: str
    """What is called, for messages."""

    def named(self) -> Any:
        """Return them by name, as plain JSON."""

    def apply(self, rule: Callable[..., object]) -> object:
        """Call a function with them."""


class DeclaredLimits:
    """The limits of an app, by name."""

    def __init__(self) -> None:
        self.by_name: dict[str, DeclaredLimit] = {}

    def declare(
        self, name: str, concurrency: int | None, rate: str | None, by: Rule | None, cost: Cost | None = None
    ) -> None:
        where = f"limit {check_name(name, 'the name of a limit')}"
        if concurrency is None and rate is None:
            raise ConfigError(f'{where} limits nothing: set concurrency=, rate= like "100/min", or both')
        if cost is not None and rate is None:
            raise ConfigError(f"{where}: cost= counts against a rate, and concurrency counts runs: set rate= too")
        if by is not None and not callable(by):
            check_name(by, f"{where}: by")
        bounds = check_bounds(where, concurrency, rate)
        limit = DeclaredLimit(name, *bounds, by, None if cost is None else check_cost_rule(cost, f"{where}: cost"))
        if self.by_name.get(name, limit) != limit and not is_interactive():
            raise ConfigError(f"{where} is declared twice, with different settings")
        self.by_name[name] = limit

    def __iter__(self) -> Iterator[DeclaredLimit]:
        return iter(list(self.by_name.values()))

    def __bool__(self) -> bool:
        return bool(self.by_name)

    def permits(self, request: Request[Any], pending: Iterable[str] = ()) -> list[NeededPermit]:
        """Return the permits that a run needs.

        `pending` names parameters whose values come later and that can't be part of a key or a cost.
        """
        names = request.declaration.limits if request.options.limits is None else request.options.limits
        arguments = _RequestArguments(request)
        return [self._permit(name, arguments, None, set(pending)) for name in sorted(names)]

    def step_permits(
        self, step: str, fn: Callable[..., Any], call: Call, names: Iterable[str], cost: Cost | None
    ) -> list[NeededPermit]:
        """Return the permits that a step needs. `cost` replaces that of the declaration."""
        arguments = _StepArguments(step, fn, call)
        permits = [self._permit(name, arguments, cost, set()) for name in sorted(names)]
        is_callers = cost is not None and not isinstance(cost, EstimatedCost)
        if is_callers and all(permit.cost is None for permit in permits):
            raise ConfigError(f"{arguments.where}: cost= is given, but none of its limits is declared with cost=")
        return permits

    def _permit(self, name: str, arguments: Arguments, cost: Cost | None, pending: set[str]) -> NeededPermit:
        limit = self._get(name, arguments.where)
        rule = None if limit.cost is None else limit.cost if cost is None else cost
        return NeededPermit(
            limit, _key(limit, arguments, pending), None if rule is None else _cost(limit, rule, arguments, pending)
        )

    def _get(self, name: str, where: str) -> DeclaredLimit:
        if name not in self.by_name:
            known = f"; declared limits: {', '.join(self.by_name)}" if self.by_name else ""
            raise ConfigError(f"{where}: limit {name!r} is not declared: add app.limit({name!r}, …){known}")
        return self.by_name[name]


Call: TypeAlias = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Positional and keyword arguments."""


class _RequestArguments:
    """The arguments of a run."""

    def __init__(self, request: Request[Any]) -> None:
        self.where = f"task {request.task}"
        self._request = request

    def named(self) -> Any:
        return decode(self._request.signature.with_defaults(self._request.args))

    def apply(self, rule: Callable[..., object]) -> object:
        signature = self._request.signature
        if not isinstance(signature, Signature):
            raise ConfigError("is a function and needs the task's code; use an argument's name instead")
        args, kwargs = signature.decode(signature.with_defaults(self._request.args))
        return rule(*args, **kwargs)


class _StepArguments:
    """The arguments of a step."""

    def __init__(self, step: str, fn: Callable[..., Any], call: Call) -> None:
        self.where = f"step {step}"
        self._fn = fn
        self._args, self._kwargs = call

    def named(self) -> Any:
        try:
            bound = inspect.signature(self._fn).bind(*self._args, **self._kwargs)
        except (TypeError, ValueError) as error:
            raise BadArguments(f"{self.where}: its arguments have no names: {error}") from error
        bound.apply_defaults()
        return decode(encode(bound.arguments, f"the arguments of {self.where}"))

    def apply(self, rule: Callable[..., object]) -> object:
        return rule(*self._args, **self._kwargs)


def check_cost_rule(cost: Any, what: str) -> Cost:
    """Return the rule of a cost, if it is valid."""
    if callable(cost):
        return cost  # type: ignore[no-any-return]
    if isinstance(cost, str):
        return check_name(cost, what)
    try:
        return check_cost(cost, what)
    except BadArguments as error:
        hint = "the name of an argument, a function of the arguments"
        raise ConfigError(f"{what} must be {hint}, or a number from 0 to {MAX_RATE:,}, not {cost!r}") from error


def _cost(limit: DeclaredLimit, rule: Cost, arguments: Arguments, pending: Collection[str]) -> int:
    if isinstance(rule, int | float):
        return check_cost(rule, f"limit {limit.name} of {arguments.where}: the cost")
    where = f"limit {limit.name} of {arguments.where}: cost="
    return check_cost(_value(rule, arguments, pending, where), f"{where}: its value")


def _key(limit: DeclaredLimit, arguments: Arguments, pending: Collection[str]) -> str:
    if limit.by is None:
        return ""
    where = f"limit {limit.name} of {arguments.where}"
    value = _value(limit.by, arguments, pending, f"{where}: by=")
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


def _value(rule: Rule, arguments: Arguments, pending: Collection[str], what: str) -> object:
    """Return what a rule finds in the arguments. `what`: the option, for messages, which end with its name."""
    if pending and (callable(rule) or rule.partition(".")[0] in pending):
        raise BadArguments(f"{what} depends on the output of another node, which isn't known yet")
    if not callable(rule):
        return _by_path(rule, arguments.named(), what)
    try:
        return arguments.apply(rule)
    except ConfigError as error:
        raise ConfigError(f"{what} {error}") from None
    except Exception as error:
        option = what.rpartition(" ")
        raise BadArguments(f"{option[0]} the {option[2]} function raised {type(error).__name__}: {error}") from error


def _by_path(path: str, value: Any, what: str) -> object:
    for part in path.split("."):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise BadArguments(f"{what}{path!r} finds nothing at {part!r} in the arguments")
    return value
