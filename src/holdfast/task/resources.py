"""Dependency injection: parameters of tasks and steps that receive resources of the worker, `db: Pool = inject()`.

Resources are what the functions of `@app.on_start` yield. A parameter with the default `inject()` isn't an argument: it
isn't stored, isn't part of a step's identity, and callers leave it out.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, NoReturn

from holdfast.errors import ConfigError, ResourceMissing, TaskError
from holdfast.task.annotations import Unresolved, resolve, shown

current_resources: ContextVar[Mapping[str, Any] | None] = ContextVar("holdfast_resources", default=None)
"""The resources of the worker that executes the current code; None outside a worker."""

_Parameter = inspect.Parameter


class InjectedResource:
    """The default of a parameter that receives a resource. Used outside a worker, it says what to do."""

    __slots__ = ("_resource",)

    def __init__(self, resource: str | None) -> None:
        self._resource = resource

    def __repr__(self) -> str:
        return "inject()" if self._resource is None else f"inject({self._resource!r})"

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        raise ResourceMissing(
            f"a parameter with the default {self!r} was used outside a worker: pass the resource as an argument"
        )


def inject(resource: str | None = None) -> Any:
    """Let a parameter of a task or step function receive a resource that a function of `@app.on_start` yields.

    The worker passes the resource whose type is that of the annotation. Callers leave the parameter out; it isn't
    stored, and it isn't part of a step's identity.

    Example:
        ```python
        @app.on_start
        async def db():
            async with create_pool(DSN) as pool:
                yield pool

        @app.task
        async def charge(order: int, db: Pool = inject()) -> None:
            await db.execute("update orders set paid = true where id = $1", order)

        charge.enqueue(42)
        ```

    Args:
        resource: The name of the resource, if several have the type: that of the `on_start` function, or a key of the
            mapping that it yields.
    """
    if resource is not None and not isinstance(resource, str):
        raise ConfigError(f"inject takes the name of a resource, not {type(resource).__name__}")
    return InjectedResource(resource)


class Injection(NamedTuple):
    """A parameter that receives a resource: by name, or by type."""

    parameter: str
    kind: Any
    resource: str | None

    def find(self, resources: Mapping[str, Any], where: str) -> Any:
        """Return the resource; raise ResourceMissing if there is none or more than one. `where` names the function."""
        if self.resource is not None:
            if self.resource in resources:
                return resources[self.resource]
            raise ResourceMissing(f"{where}: there is no resource {self.resource!r}; {_known(resources)}")
        found = {name: value for name, value in resources.items() if isinstance(value, self.kind)}
        if len(found) > 1:
            found = {name: value for name, value in found.items() if type(value) is self.kind} or found
        if len(found) == 1:
            return next(iter(found.values()))
        what = f"{where}: parameter {self.parameter} needs a resource of type {shown(self.kind)}"
        if found:
            raise ResourceMissing(f"{what}, and {' and '.join(found)} are: name one, inject({next(iter(found))!r})")
        raise ResourceMissing(f"{what}, and no @app.on_start function yields one; {_known(resources)}")


def _known(resources: Mapping[str, Any]) -> str:
    if not resources:
        return "the worker has no resources"
    return f"the resources are {', '.join(f'{name} ({type(value).__name__})' for name, value in resources.items())}"


def has_injections(fn: Any) -> bool:
    """Return whether a function has a parameter that receives a resource. Cheap."""
    defaults = (*(getattr(fn, "__defaults__", None) or ()), *(getattr(fn, "__kwdefaults__", None) or {}).values())
    return any(isinstance(default, InjectedResource) for default in defaults)


def injections_of(fn: Any, where: str) -> tuple[Injection, ...]:
    """Return the parameters of a function that receive resources. Raises TaskError if one can't."""
    if not has_injections(fn):
        return ()
    found: list[Injection] = []
    for parameter in inspect.signature(fn).parameters.values():
        is_injected = isinstance(parameter.default, InjectedResource)
        if not is_injected:
            if found and parameter.kind not in (_Parameter.KEYWORD_ONLY, _Parameter.VAR_KEYWORD):
                raise TaskError(f"{where}: move {found[-1].parameter}, which is injected, behind {parameter.name}")
            continue
        if parameter.kind is _Parameter.POSITIONAL_ONLY:
            raise TaskError(f"{where}: parameter {parameter.name} is positional-only and can't be injected")
        found.append(Injection(parameter.name, _kind(fn, parameter, where), parameter.default._resource))
    return tuple(found)


def _kind(fn: Any, parameter: inspect.Parameter, where: str) -> Any:
    """Return the class that a resource must be an instance of; `object` if it is found by name."""
    if parameter.default._resource is not None:
        return object
    try:
        kind = resolve(fn, parameter.annotation)
    except Unresolved as error:
        raise TaskError(f"{where}: the annotation of {parameter.name} can't be resolved: {error}") from error
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    kind = typing.get_origin(kind) or kind
    try:
        isinstance(None, kind)
    except TypeError:
        kind = Any
    if kind is Any or kind is object:
        raise TaskError(
            f'{where}: annotate {parameter.name} with the class of its resource, or name that: inject("db")'
        )
    return kind


def without_injections(signature: inspect.Signature) -> inspect.Signature:
    """Return a signature without the parameters that receive resources."""
    kept = [each for each in signature.parameters.values() if not isinstance(each.default, InjectedResource)]
    return signature.replace(parameters=kept)


def resources_for(injections: Iterable[Injection], where: str) -> dict[str, Any]:
    """Return the resources of the current worker by parameter; nothing outside a worker."""
    resources = current_resources.get()
    return {} if resources is None else {each.parameter: each.find(resources, where) for each in injections}


def bind_resources(
    fn: Callable[..., Any], injections: Iterable[Injection], given: Mapping[str, Any], where: str
) -> Callable[..., Any]:
    """Return a step function with the resources that the caller didn't pass."""
    return partial(fn, **resources_for((each for each in injections if each.parameter not in given), where))
