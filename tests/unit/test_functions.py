"""Results of step functions: stored as JSON, decoded as the annotated type."""

import asyncio
import functools
import gc
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeVar
from uuid import UUID

import pytest

from holdfast.errors import NotSerializable, PayloadError
from holdfast.model.codec import encode
from holdfast.task import functions
from holdfast.task.functions import inspect_function

T = TypeVar("T")
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@dataclass
class Receipt:
    id: UUID
    total: Decimal


class Till:
    total: int = 0

    def close(self) -> Receipt: ...  # type: ignore[empty-body]

    @staticmethod
    def count() -> set[int]: ...  # type: ignore[empty-body]


class Caller:
    annotated: int = 1

    def __call__(self) -> datetime: ...  # type: ignore[empty-body]


def kept(fn, value):
    """Return what a replay decodes of a value that the function returned."""
    return inspect_function(fn).decode(encode(value, "the result of step s"))


RECEIPT = Receipt(UUID(int=1), Decimal("9.90"))


def typed() -> Receipt: ...  # type: ignore[empty-body]
def named() -> "Receipt": ...  # type: ignore[empty-body]
async def awaited() -> Receipt: ...  # type: ignore[empty-body]
def coroutine() -> Coroutine[Any, Any, Receipt]: ...  # type: ignore[empty-body]
def awaitable() -> "Awaitable[Receipt]": ...  # type: ignore[empty-body]


@functools.wraps(typed)
def wrapped(*args):
    return typed(*args)


@pytest.mark.parametrize(
    "fn", [typed, named, awaited, coroutine, awaitable, wrapped, functools.partial(typed), Till().close]
)
def test_a_result_is_decoded_as_the_annotated_type(fn):
    assert kept(fn, RECEIPT) == RECEIPT


def test_callable_objects_and_static_methods_are_typed_too():
    assert kept(Caller(), NOON) == NOON
    assert kept(Till.count, {1, 2}) == {1, 2}


def test_a_class_used_as_a_step_returns_an_instance():
    assert kept(Decimal, Decimal("1.5")) == Decimal("1.5")
    assert kept(Receipt, RECEIPT) == RECEIPT


def unannotated(): ...
def anything() -> Any: ...
def unresolved() -> "Nowhere": ...  # type: ignore[name-defined]  # noqa: F821
def untypable() -> asyncio.Event: ...  # type: ignore[empty-body]
def generic(value: T) -> T: ...  # type: ignore[empty-body]


@pytest.mark.parametrize("fn", [unannotated, anything, unresolved, untypable, generic, lambda: 1, len, Till])
def test_a_result_without_a_usable_annotation_is_plain_json(fn):
    assert kept(fn, {"at": NOON, "pair": (1, 2)}) == {"at": "2026-01-02T12:00:00Z", "pair": [1, 2]}


def test_a_result_that_does_not_match_its_annotation_is_plain_json():
    assert kept(typed, {"id": "no"}) == {"id": "no"}
    assert kept(typed, None) is None


def test_none_is_decoded_as_none():
    def nothing() -> None: ...

    assert kept(nothing, None) is None
    assert kept(unannotated, None) is None


def test_an_unserializable_result_is_rejected_by_name():
    with pytest.raises(NotSerializable, match="the result of step s: "):
        kept(typed, object())


def test_invalid_json_is_rejected():
    with pytest.raises(PayloadError):
        inspect_function(unannotated).decode("{")


def test_a_function_is_inspected_once_and_a_method_once_for_all_instances():
    assert inspect_function(typed) is inspect_function(typed)
    assert inspect_function(Till().close) is inspect_function(Till().close)


def test_cached_function_info_does_not_keep_a_function_alive():
    def short_lived() -> int: ...  # type: ignore[empty-body]

    inspect_function(short_lived)
    before = len(functions._known)
    del short_lived
    gc.collect()
    assert len(functions._known) < before


def test_an_unhashable_callable_is_inspected():
    class Unhashable(Caller):
        __hash__ = None  # type: ignore[assignment]

    assert kept(Unhashable(), NOON) == NOON
