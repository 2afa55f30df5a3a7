"""Arguments and results: bound to parameters, stored as JSON, decoded as the annotated types."""

import enum
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NoReturn, Optional, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadArguments, NotSerializable, TaskError
from holdfast.task.signature import Signature, UntypedSignature


@dataclass
class Line:
    item: str
    count: int = 1


@dataclass
class Order:
    id: int
    lines: list[Line] = field(default_factory=list)
    parent: Optional["Order"] = None


class Address(TypedDict, total=False):
    street: str


class Colour(enum.Enum):
    RED = "red"


class Point(msgspec.Struct):
    x: int


class Money(pydantic.BaseModel):
    amount: Decimal


def call(fn, *args, **kwargs):
    """Return what the function receives after its arguments were stored and decoded."""
    signature = Signature(fn, "t")
    return signature.decode(signature.encode(args, kwargs))


def test_arguments_are_stored_by_parameter_name_without_defaults():
    def fn(a, b=2, *rest, c, d=4, **more): ...

    signature = Signature(fn, "t")
    assert signature.encode((1,), {"c": 3}) == '{"a":1,"c":3}'
    assert signature.encode((1, 2, 3, 4), {"c": 3, "z": 5}) == '{"a":1,"b":2,"rest":[3,4],"c":3,"more":{"z":5}}'


@given(st.lists(st.integers(), max_size=5), st.dictionaries(st.sampled_from(["c", "d", "y", "z", "b"]), st.integers()))
def test_stored_arguments_bind_as_python_would_bind_them(args, kwargs):
    def fn(a, /, b=2, *rest, c, d=4, **more):
        return a, b, rest, c, d, more

    try:
        direct = fn(*args, **kwargs)
    except TypeError:
        with pytest.raises(BadArguments):
            call(fn, *args, **kwargs)
        return
    kept_args, kept_kwargs = call(fn, *args, **kwargs)
    assert fn(*kept_args, **kept_kwargs) == direct


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {}, "missing a required argument: 'to'"),
        (("a", 1, 2), {}, "too many positional arguments"),
        (("a",), {"to": "b"}, "multiple values for argument 'to'"),
        (("a",), {"colour": 1}, "unexpected keyword argument 'colour'"),
        (("a", "x"), {}, "Expected `int`, got `str` - at `count`"),
        ((5,), {}, "Expected `str`, got `int` - at `to`"),
    ],
)
def test_invalid_arguments_are_rejected_with_the_task_and_pythons_message(args, kwargs, words):
    def fn(to: str, count: int = 1): ...

    with pytest.raises(BadArguments) as caught:
        Signature(fn, "mail.send").encode(args, kwargs)
    assert words in str(caught.value)
    assert "task mail.send(to: str, count: int = 1)" in str(caught.value)


def test_an_error_mentions_a_missing_context_annotation():
    def fn(ctx, n: int): ...

    def job(ctx: str, n: int): ...

    with pytest.raises(BadArguments, match=r"missing a required argument: 'n'.*`ctx: Context`"):
        Signature(fn, "t").encode((5,), {})
    with pytest.raises(BadArguments, match=r"missing a required argument: 'n'$"):
        Signature(job, "t").encode(("a",), {})


def test_an_invalid_nested_value_is_rejected_with_its_path():
    def fn(order: Order): ...

    with pytest.raises(BadArguments, match=r"at `order.lines\[0\].count`"):
        Signature(fn, "t").encode(({"id": 1, "lines": [{"item": "x", "count": "many"}]},), {})


def test_an_unserializable_value_is_rejected_with_its_path():
    def fn(x): ...

    with pytest.raises(NotSerializable, match=r"the arguments of task t: .*`\$\.x\.a`"):
        Signature(fn, "t").encode(({"a": float("nan")},), {})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Order, Order(1, [Line("x")], Order(2))),
        (Address, {"street": "s"}),
        (Colour, Colour.RED),
        (Decimal, Decimal("1.10")),
        (datetime, datetime(2026, 1, 1, tzinfo=UTC)),
        (UUID, UUID(int=3)),
        (Point, Point(3)),
        (Money, Money(amount=Decimal("1.5"))),
        (list[Money], [Money(amount=Decimal("1.5"))]),
        (Money | None, None),
        (dict[str, tuple[Order, ...]], {"a": (Order(1), Order(2))}),
        (set[int], {1, 2}),
        (Sequence[int], [1, 2]),
        (bytes, b"\0\xff"),
        (object, {"a": [1]}),
        (dict[str, object], {"a": [1]}),
        (Any, None),
    ],
)
def test_arguments_and_results_are_decoded_as_their_annotated_types(kind, value):
    def fn(first, *, it): ...

    fn.__annotations__ = {"it": kind, "return": kind}
    assert call(fn, 1, it=value) == ((1,), {"it": value})
    signature = Signature(fn, "t")
    assert signature.decode_result(signature.encode_result(value)) == value


def test_var_arguments_are_typed_too():
    def fn(*points: Point, **orders: Order): ...

    assert call(fn, Point(1), Point(2), a=Order(1)) == ((Point(1), Point(2)), {"a": Order(1)})
    with pytest.raises(BadArguments, match=r"`points\[1\]`"):
        call(fn, Point(1), "x")


def test_a_keyword_may_have_the_name_of_a_var_parameter():
    def fn(*args, **kwargs): ...

    assert call(fn, 1, args=2, kwargs=3) == ((1,), {"args": 2, "kwargs": 3})


def test_stored_arguments_without_a_parameter_are_ignored():
    def fn(a: int): ...

    assert Signature(fn, "t").decode('{"a":1,"gone":[1]}') == ((1,), {})


def test_missing_optional_arguments_use_pythons_defaults():
    def fn(a: int, b: int = 2, c: int = 3, *, d: int = 4): ...

    assert Signature(fn, "t").decode('{"a":1}') == ((1,), {})
    assert Signature(fn, "t").decode('{"a":1,"c":5,"d":6}') == ((1,), {"c": 5, "d": 6})


def test_a_gap_before_positional_only_or_var_arguments_is_filled_with_the_default():
    def fn(a=1, b=2, /, *rest): ...

    assert Signature(fn, "t").decode('{"b":5,"rest":[6]}') == ((1, 5, 6), {})


@pytest.mark.parametrize("text", ["{}", '{"b":1}', '{"a":"x"}', "[]", "null", "{", '{"*":[]}', '{"*":5}'])
def test_stored_arguments_that_do_not_match_the_code_raise_bad_arguments(text):
    def fn(a: int, *, b: int = 0): ...

    with pytest.raises(BadArguments, match="the stored arguments don't match"):
        Signature(fn, "t").decode(text)


def test_a_missing_keyword_only_argument_is_noticed_in_stored_arguments():
    def fn(*, b: int): ...

    with pytest.raises(BadArguments, match="missing a required argument: 'b'"):
        Signature(fn, "t").decode("{}")


def test_positional_values_of_an_untyped_caller_are_bound_by_position():
    def fn(a: Point, b: int = 2, *rest: int, c: int = 3, **more: Any): ...

    text = UntypedSignature("t").encode((Point(1), 5, 6, 7), {"c": 8, "z": [9]})
    assert text == '{"*":[{"x":1},5,6,7],"c":8,"z":[9]}'
    assert Signature(fn, "t").decode(text) == ((Point(1), 5, 6, 7), {"c": 8, "z": [9]})


def test_positional_values_that_do_not_match_are_rejected():
    def fn(a: int, b: int = 0): ...

    with pytest.raises(BadArguments, match="too many positional values"):
        Signature(fn, "t").decode('{"*":[1,2,3]}')
    with pytest.raises(BadArguments, match="multiple values for 'a'"):
        Signature(fn, "t").decode('{"*":[1],"a":2}')


def test_an_untyped_caller_stores_keywords_without_a_star():
    assert UntypedSignature("t").encode((), {"a": 1}) == '{"a":1}'
    with pytest.raises(BadArguments):
        UntypedSignature("t").encode((1,), {"*": 1})


def test_a_result_that_does_not_fit_its_annotation_comes_back_as_plain_json():
    def fn() -> Order: ...

    assert Signature(fn, "t").decode_result('{"id":"x"}') == {"id": "x"}


def test_an_unserializable_result_is_rejected_with_its_type():
    def fn(): ...

    with pytest.raises(NotSerializable, match=r"the result of task t: a value of type socket\.socket"):
        Signature(fn, "t").encode_result(socket.socket.__new__(socket.socket))


def test_a_function_may_be_annotated_as_never_returning():
    def fn() -> NoReturn:
        raise ValueError

    assert Signature(fn, "t").decode_result("null") is None


@pytest.mark.parametrize(
    "kind", [socket.socket, list[socket.socket], Callable[[], int], Order | Line, complex, Money | int]
)
def test_an_undecodable_annotation_is_rejected_when_the_task_is_declared(kind):
    def fn(x): ...

    fn.__annotations__ = {"x": kind}
    with pytest.raises(TaskError, match=r"task shop\.t: parameter x is annotated .* Use builtins"):
        Signature(fn, "shop.t")
    fn.__annotations__ = {"return": kind}
    with pytest.raises(TaskError, match=r"task shop\.t: the result is annotated"):
        Signature(fn, "shop.t")


def test_an_undecodable_nested_field_is_found():
    @dataclass
    class Holder:
        inner: list[dict[str, socket.socket]]

    def fn(x): ...

    fn.__annotations__ = {"x": Holder}
    with pytest.raises(TaskError, match=r"Holder.*socket\.socket"):
        Signature(fn, "t")


def test_names_that_are_defined_later_are_resolved_at_the_first_use():
    def fn(x: "Later") -> "Later": ...  # noqa: F821

    signature = Signature(fn, "t")
    globals()["Later"] = Point
    try:
        assert signature.decode(signature.encode((Point(1),), {})) == ((Point(1),), {})
    finally:
        del globals()["Later"]


def test_an_undefined_name_in_an_annotation_is_reported_at_the_first_use():
    def fn(x: "Nowhere"): ...  # noqa: F821

    signature = Signature(fn, "shop.t")
    with pytest.raises(TaskError, match=r"task shop\.t: .*Nowhere.*TYPE_CHECKING"):
        signature.encode((1,), {})


def test_parameters_may_have_any_name():
    def fn(p0: int, positional: int, self: int, __hidden: int, encode: int): ...

    assert call(fn, 1, 2, 3, 4, 5) == ((1, 2, 3, 4, 5), {})
