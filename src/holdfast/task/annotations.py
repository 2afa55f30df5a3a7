"""Resolve the annotations of functions, and check that JSON can be decoded as these types.

`signature.py` binds and decodes arguments with them.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, get_origin

import msgspec

from holdfast.errors import ConfigError, TaskError
from holdfast.model.codec import decoder, is_pydantic_model
from holdfast.model.secret import Secret

_NO_TYPES = ("cls", "default", "default_factory")
_UNTYPED = (object, typing.NoReturn, typing.Never)


class Unresolved(Exception):
    """An annotation refers to a name that isn't defined, or not yet."""


def resolve(fn: Callable[..., Any], annotation: Any) -> Any:
    """Return the type of an annotation, or Any if there is none."""
    if annotation is inspect.Parameter.empty:
        return Any
    try:
        holder = SimpleNamespace(__annotations__={"it": annotation})
        kind = typing.get_type_hints(holder, globalns=_names_of(fn), include_extras=True)["it"]
    except NameError as error:
        raise Unresolved(str(error)) from error
    except (SyntaxError, TypeError, AttributeError) as error:
        raise Unresolved(f"{annotation!r}: {error}") from error
    return Any if any(kind is untyped for untyped in _UNTYPED) else kind


def named(fn: Callable[..., Any], annotation: Any) -> Any:
    """Look up an annotation that is a plain dotted name, like `"holdfast.Context"`.

    Unlike `resolve` it evaluates nothing, and returns the annotation itself if the name is undefined.
    """
    if not isinstance(annotation, str):
        return annotation
    first, *rest = annotation.strip("'\" ").split(".")
    found = _names_of(fn).get(first, annotation)
    for part in rest:
        found = getattr(found, part, annotation)
    return found


def check(where: str, annotation: Any, kind: Any) -> None:
    """Raise TaskError if JSON can't be decoded as this type. `where` describes its origin, for the message."""
    try:
        info = msgspec.inspect.type_info(kind)
        decoder(kind)
    except NameError as error:  # A forward reference inside a dataclass or a TypedDict.
        raise Unresolved(str(error)) from error
    except Exception as error:
        raise _untypable(where, annotation, str(error)) from error
    if (unsupported := _unsupported(info)) is not None:
        why = f"{unsupported.__module__}.{unsupported.__qualname__} can't be stored as JSON"
        raise _untypable(where, annotation, why)


def payload_type(kind: Any, what: str) -> Any:
    """Check the type of an event's or message's payload, given as `what`; None for plain JSON."""
    if kind is None or kind is Any:
        return None
    if isinstance(kind, str):
        raise ConfigError(f"{what} must be a type, not a str: remove the quotes")
    try:
        _check_payload_type(kind, what)
    except TypeError:  # Unhashable types can't be cached.
        _check_payload_type.__wrapped__(kind, what)
    return kind


@lru_cache(maxsize=512)
def _check_payload_type(kind: Any, what: str) -> None:
    try:
        check(f"{what} is", kind, kind)
    except Unresolved as error:
        raise TaskError(f"{what}: {kind!r} can't be resolved: {error}") from error


def shown(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)


def _names_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """Return the names visible to a function's annotations: its module's globals and its closure."""
    plain: Any = inspect.unwrap(fn)
    names = dict(getattr(plain, "__globals__", {}))
    cells = getattr(plain, "__closure__", None) or ()
    code = getattr(plain, "__code__", None)
    for name, cell in zip(code.co_freevars if code else (), cells, strict=False):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # Not assigned yet.
            continue
    return names


def has_secrets(kind: Any) -> bool:
    """Return whether a checked type contains a `Secret`."""
    return any((get_origin(each) or each) is Secret for each in _customs(msgspec.inspect.type_info(kind), set()))


def _unsupported(info: Any) -> Any:
    """Return a class in a type tree that is not decodable by msgspec, a Secret or a pydantic model."""
    customs = _customs(info, set())
    known = (object, Secret)
    return next(
        (each for each in customs if (get_origin(each) or each) not in known and not is_pydantic_model(each)), None
    )


def _customs(info: Any, seen: set[int]) -> Iterator[Any]:
    """Yield the classes in a type tree that msgspec doesn't support natively."""
    if isinstance(info, msgspec.inspect.CustomType):
        yield info.cls
    if id(info) in seen:
        return
    seen.add(id(info))
    if isinstance(info, tuple | list):
        parts = list(info)
    elif isinstance(info, msgspec.inspect.Type | msgspec.inspect.Field):
        parts = [getattr(info, name) for name in info.__struct_fields__ if name not in _NO_TYPES]
    else:
        return
    for part in parts:
        yield from _customs(part, seen)


def _untypable(where: str, annotation: Any, why: str) -> TaskError:
    if "more than one custom type" in why:
        return TaskError(
            f"{where} {shown(annotation)}, a union of pydantic models, which only pydantic can decode: "
            "wrap it in a model, like class Pet(RootModel[Cat | Dog])"
        )
    return TaskError(
        f"{where} {shown(annotation)}, which can't be decoded from JSON: {why}. "
        "Use builtins, datetime, UUID, Decimal, Enum, dataclasses, TypedDict, msgspec.Struct or pydantic models, "
        "Secret of one of them, or Any for plain JSON"
    )


def schema_of_model(kind: type[Any]) -> dict[str, Any]:
    """Return the JSON Schema of a class that msgspec doesn't know: a pydantic model."""
    if not is_pydantic_model(kind):
        raise NotImplementedError(f"{kind!r} has no schema")
    schema: dict[str, Any] = kind.model_json_schema()
    return schema
