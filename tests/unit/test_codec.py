"""JSON encoding: accepted values round-trip, others are rejected with their path."""

import collections
import enum
import math
import sys
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import NotSerializable, PayloadError, TooLarge
from holdfast.model.codec import MAX_PAYLOAD_BYTES, canonical, canonical_text, decode, digest, encode


@dataclass
class Order:
    id: int
    price: Any = None


class Stock(pydantic.BaseModel):
    by_shelf: dict[int | str, int]


class Shelves(pydantic.RootModel[dict[int | str, int]]):
    pass


class Money(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)

    amount: float
    at: datetime | None = None
    currency: str = pydantic.Field(default="EUR", alias="cur")


class Colour(enum.Enum):
    RED = "red"


class Odd(enum.Enum):
    BROKEN = math.nan


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(plain)
def test_plain_values_round_trip(value):
    assert decode(encode(value)) == value


@given(plain)
def test_canonicalization_is_idempotent(value):
    text = canonical(value)
    assert canonical_text(text) == text
    assert decode(text) == value


@given(
    st.recursive(
        st.none() | st.floats() | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_only_non_finite_numbers_are_rejected(value):
    def finite(value):
        if isinstance(value, float):
            return math.isfinite(value)
        return (
            all(map(finite, value.values() if isinstance(value, dict) else value))
            if isinstance(value, dict | list)
            else True
        )

    if finite(value):
        assert decode(encode(value)) == value
    else:
        with pytest.raises(NotSerializable):
            encode(value)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"order": {"price": math.nan}}, r"nan.*`\$\.order\.price`"),
        ([1, [None, -math.inf]], r"-inf.*`\$\[1\]\[1\]`"),
        ({"o": Order(1, math.inf)}, r"inf.*`\$\.o\.price`"),
        ({"m": [Money(amount=math.nan)]}, r"nan.*`\$\.m\[0\]\.amount`"),
        ({"c": Odd.BROKEN}, r"nan.*`\$\.c`"),
        ({"a": {math.nan: 1}}, r"nan.* as a key at `\$\.a`"),
        ([2**70, math.nan], r"nan.*`\$\[1\]`"),
        ({"a": "x\ud800"}, r"lone surrogate \('\\ud800'\) in a string at `\$\.a`"),
        ({1: "a", "1": "b"}, r"the keys 1 and '1', which JSON writes alike, at `\$`"),
        ({"a": [{"x": 0}, {2.5: 0, "y": 0, "2.5": 0}]}, r"the keys 2.5 and '2.5', .* at `\$\.a\[1\]`"),
        ([{Colour.RED: 0, "red": 1}], r"the keys <Colour.RED: 'red'> and 'red', .* at `\$\[0\]`"),
        ({"a": {date(2026, 1, 2): 0, "2026-01-02": 1}}, r"2026, 1, 2\) and '2026-01-02', .* at `\$\.a`"),
        ({"a": {"\udfff": 1}}, r"lone surrogate .* as a key at `\$\.a`"),
        ({"n": 10**5000}, r"integer of more than 4,000 digits at `\$\.n`"),
        ({"a": [object()]}, r"type object.*`\$\.a\[0\]`"),
        ({"a": collections.deque()}, r"type collections\.deque.*`\$\.a`"),
        ({"a": {(1, 2): 3}}, r"key of type tuple .*`\$\.a`"),
        ({"a": {None: 3}}, r"key of type NoneType .*`\$\.a`"),
    ],
)
def test_unserializable_values_are_rejected_with_their_path(value, place):
    with pytest.raises(NotSerializable, match=place) as caught:
        encode(value, "the arguments of task t")
    assert str(caught.value).startswith("the arguments of task t: ")
    str(caught.value).encode()


@given(st.dictionaries(st.integers(-3, 3) | st.sampled_from(["-1", "0", "1", "2", "x"]), st.integers()))
def test_only_dicts_whose_keys_json_writes_alike_are_rejected(value):
    """Wherever the dict is, and whatever else is there."""
    merged = len({str(key) for key in value}) < len(value)
    models = Stock(by_shelf=value), {"a": [Shelves(value)]}
    for nested in (value, [value], {"a": value}, {"a": 1, "b": [{"a": 1}, {"a": value}]}, Order(1, value), *models):
        if merged:
            with pytest.raises(NotSerializable, match="which JSON writes alike"):
                encode(nested)
        else:
            assert len(decode(encode(value))) == len(value)
            assert len(decode(encode(models[0]))["by_shelf"]) == len(value)


def test_raw_json_with_spaces_is_accepted():
    """It shrinks when it is decoded and encoded again, as a dict with equal keys would."""
    assert decode(encode({"a": msgspec.Raw(b'{"x": 1, "y": 2}')})) == {"a": {"x": 1, "y": 2}}


def test_none_is_stored_as_null():
    assert encode({"a": None, "b": [None, 1.5]}) == '{"a":null,"b":[null,1.5]}'
    assert encode("null nan inf") == '"null nan inf"'
    assert decode(encode({"nan": 1, "-inf": [None]})) == {"nan": 1, "-inf": [None]}


@pytest.mark.parametrize("digits", [18, 19, 20, 21, 400, 3999, 4000])
def test_accepted_integers_round_trip(digits):
    for number in (10**digits - 1, -(10**digits) + 1):
        assert decode(encode([number])) == [number]


def test_too_long_integers_are_rejected_regardless_of_interpreter_settings():
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with pytest.raises(NotSerializable, match=r"4,000 digits at `\$\[1\]`"):
            encode([1, 10**4000])
    finally:
        sys.set_int_max_str_digits(before)


def test_a_long_string_of_digits_is_accepted():
    assert decode(encode(["1" * 5000])) == ["1" * 5000]


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [201, 300, 5000, 100_000])
def test_deep_nesting_is_rejected(depth):
    with pytest.raises(NotSerializable, match="nest"):
        encode(nested(depth))


def test_nesting_within_the_limit_round_trips():
    assert decode(encode(nested(200))) == nested(200)


def test_brackets_side_by_side_or_in_strings_are_not_nesting():
    value = [[{}] for _ in range(1000)] + ["[" * 1000, "]{" * 500, '"[' * 300, "\\"]
    assert decode(encode(value)) == value


def test_a_recursive_value_is_rejected():
    value: list[Any] = []
    value.append(value)
    with pytest.raises(NotSerializable, match="nesting deeper than 200"):
        encode(value)


def test_a_too_large_payload_is_rejected_with_size_limit_and_advice():
    with pytest.raises(TooLarge, match=r"the result: 2,097,153 bytes.*limit of 2,097,152.*reference"):
        encode("x" * (MAX_PAYLOAD_BYTES - 1), "the result")
    assert len(encode("x" * (MAX_PAYLOAD_BYTES - 2))) == MAX_PAYLOAD_BYTES


def test_the_limit_counts_bytes_and_not_characters():
    with pytest.raises(TooLarge):
        encode("é" * (MAX_PAYLOAD_BYTES // 2))


def test_a_nul_character_round_trips():
    text = encode({"a\0": "b\0c"})
    assert "\0" not in text
    assert "\\u0000" in text
    assert decode(text) == {"a\0": "b\0c"}


def test_subclasses_of_plain_types_are_stored_as_plain_values():
    class Number(int):
        pass

    class Share(float):
        pass

    class Text(str):
        __slots__ = ()

    assert encode([Number(3), Share(1.5), Text("x")]) == '[3,1.5,"x"]'
    with pytest.raises(NotSerializable, match="nan"):
        encode([Share("nan")])


def test_a_pydantic_model_round_trips():
    money = Money(amount=1.5, at=datetime(2026, 1, 2, tzinfo=UTC), cur="GBP")
    assert decode(encode([money]), list[Money]) == [money]


def test_typed_values_round_trip():
    order = Order(1, 2)
    assert decode(encode(order), Order) == order
    assert decode(encode(Decimal("1.10")), Decimal) == Decimal("1.10")
    assert decode(encode(Colour.RED), Colour) is Colour.RED


def test_undecodable_text_raises_payload_error():
    with pytest.raises(PayloadError, match="int"):
        decode('"x"', int)
    with pytest.raises(PayloadError):
        decode("{")


# Pinned: stored keys and step identities depend on these. If one changes, the version in `digest` must change too.
VECTORS = [
    ({"b": 1, "a": [True, None, "é\0"]}, '{"a":[true,null,"é\\u0000"],"b":1}'),
    ({"x": 1.0, "y": 1, "z": 1e22, "w": -0.0}, '{"w":-0.0,"x":1.0,"y":1,"z":1e22}'),
    ([0.1, 1e-7, 123456789.123], "[0.1,1e-7,123456789.123]"),
    (datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=2))), '"2026-03-01T10:00:00Z"'),
    (datetime(2026, 3, 1, 12, 0, 0, 5, tzinfo=UTC), '"2026-03-01T12:00:00.000005Z"'),
    (datetime(2026, 3, 1, 12), '"2026-03-01T12:00:00"'),  # noqa: DTZ001
    (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
    (Order(7), '{"id":7,"price":null}'),
    ({"10": 1, "9": 2, "a": {"d": 1, "c": 2}}, '{"10":1,"9":2,"a":{"c":2,"d":1}}'),
    (2**80, "1208925819614629174706176"),
]


@pytest.mark.parametrize(("value", "text"), VECTORS)
def test_the_canonical_text_is_pinned(value, text):
    assert canonical(value) == text


def test_the_digest_is_pinned():
    assert digest("{}") == "1:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


def test_equal_times_in_different_zones_have_the_same_canonical_text():
    here = datetime(2026, 3, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    assert canonical({"a": [here]}) == canonical({"a": [here.astimezone(UTC)]})


def test_strings_that_only_resemble_times_are_unchanged():
    assert canonical(["2026-99-01T12:00:00+02:00", "9999-12-31T23:59:59-02:00"]) == (
        '["2026-99-01T12:00:00+02:00","9999-12-31T23:59:59-02:00"]'
    )


def test_key_order_and_whitespace_do_not_matter():
    assert canonical_text('{ "b": 1,\n "a": {"d":1, "c":2} }') == '{"a":{"c":2,"d":1},"b":1}'


def test_a_problem_in_a_struct_is_reported_with_its_field():
    class Point(msgspec.Struct):
        x: float

    with pytest.raises(NotSerializable, match=r"`\$\[0\]\.x`"):
        encode([Point(math.nan)])
