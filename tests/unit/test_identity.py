"""The digests of arguments: pinned, because unfinished runs find their recorded steps by them."""

import os
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pydantic
import pytest

from holdfast.errors import NotSerializable, TooLarge
from holdfast.task import operation_factory
from holdfast.task.operation_factory import NO_ARGUMENTS, arguments_digest
from holdfast.task.registry import Registry, register_task, remote_task

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def of(*args, **kwargs):
    return arguments_digest("pay", args, kwargs)


# fmt: off
VECTORS = [
    ((), {}, "1:5eed25f9aa1c6813"),
    ((1,), {}, "1:27b6c79168db2da0"),
    ((1, 2), {}, "1:bd6940153c0ed40f"),
    (([1, 2],), {}, "1:0e7555216ec5ac04"),
    ((1.0,), {}, "1:44a4fc904063d81d"),
    ((True,), {}, "1:49960d78bcca7bab"),
    (("1",), {}, "1:322f3e4d2e951cbf"),
    ((None,), {}, "1:abda4e706b36d0f1"),
    (({"b": {"y": 1, "x": 2}, "a": []},), {}, "1:6e15461771998993"),
    ((), {"a": 1, "b": 2}, "1:22a1186c4af1c85f"),
    ((datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),), {}, "1:0cfe0f803841fabf"),
    (("é, 日本, 🙂",), {}, "1:ccbb7641f142a771"),
    (({"c", "a", "b"},), {}, "1:dbfd8703b1fbb60f"),
    ((Decimal("1.50"),), {}, "1:6088e436b6b517ce"),
    ((UUID(int=7),), {}, "1:c0284f383b8bb420"),
    ((date(2026, 1, 2),), {}, "1:f0fed3ba87790653"),
    ((10**30,), {}, "1:84accd8f65d8311f"),
    (({2: 1, 10: 2},), {}, "1:4c92ba1e433be0a6"),
]
# fmt: on


@pytest.mark.parametrize(("args", "kwargs", "digest"), VECTORS)
def test_the_digest_of_arguments_is_pinned(args, kwargs, digest):
    assert arguments_digest("any", args, kwargs) == digest


def test_different_arguments_have_different_digests():
    digests = [digest for _, _, digest in VECTORS]
    assert len(set(digests)) == len(digests)


def test_the_order_of_keys_and_keywords_does_not_matter():
    assert of({"a": {"x": 1, "y": 2}, "b": 3}) == of({"b": 3, "a": {"y": 2, "x": 1}})
    assert of(a=1, b=2) == of(b=2, a=1)


def test_equal_times_in_different_zones_have_the_same_digest():
    assert of(NOON) == of(NOON.astimezone(timezone(timedelta(hours=5, minutes=30))))
    assert of(NOON) != of(NOON + timedelta(microseconds=1))


def test_none_differs_from_no_argument():
    assert len({of(), of(None), of(a=None), of(None, None)}) == 4


def test_a_positional_argument_differs_from_a_keyword():
    assert of(1) != of(a=1)
    assert of({"a": 1}) != of(a=1)


def test_no_arguments_have_a_constant_digest():
    assert of() == NO_ARGUMENTS == VECTORS[0][2]


def test_the_iteration_order_of_a_set_does_not_matter():
    program = (
        "from holdfast.task.operation_factory import arguments_digest as d\nprint(d('s', ({'x', 'y', 'z', 'w'},), {}))"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in (1, 2, 3)
    }
    assert digests == {of({"w", "x", "y", "z"})}


def test_the_iteration_order_of_a_set_in_a_pydantic_model_does_not_matter():
    class Label(pydantic.BaseModel):
        names: frozenset[str]

    class Post(pydantic.BaseModel):
        tags: set[int]
        labels: list[Label]
        by_day: dict[int, set[int]]

    def post(*tags):
        # 8 and 0 collide in a small hash table, so the iteration order is the insertion order
        return Post(tags=set(tags), labels=[Label(names={"a"})], by_day={1: set(tags)})

    assert list({0, 8}) != list({8, 0})
    assert of(post(0, 8)) == of(post(8, 0)) != of(post(0, 9))


def test_a_set_that_cannot_be_sorted_is_rejected():
    with pytest.raises(NotSerializable, match=r"step pay: a set whose members can't be sorted.*use a list"):
        of({1, "a"})


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_non_finite_number_is_rejected_with_the_name_of_the_step(number):
    with pytest.raises(NotSerializable, match=r"the arguments of step pay: (nan|inf), which JSON can't hold"):
        of({"amount": number})


def test_an_unserializable_object_is_rejected_with_advice():
    with pytest.raises(NotSerializable, match=r"step pay: .*type object.*pass plain values.*name=…"):
        of(object())


def test_arguments_over_the_size_limit_are_rejected():
    with pytest.raises(TooLarge, match="step pay"):
        of("x" * 3_000_000)


# Children


def mail(to: str, subject: str = "hi", *, at: datetime | None = None, tags: set[str] = frozenset()) -> None: ...  # type: ignore[assignment]


@pytest.fixture
def task():
    return register_task(mail, enqueuer=None, registry=Registry(), name="mail")


def spawned(task, *args, **kwargs):
    return operation_factory.spawn("spawn", task, args, kwargs).digest


def test_the_digest_of_a_child_is_pinned(task):
    assert spawned(task, "ada") == "1:034efed2d9ad2025"
    assert spawned(task.options(queue="slow", priority=3), "ada") == "1:a6688f6739758c0d"
    assert spawned(remote_task("far", enqueuer=None), 1, b=2) == "1:98624c6833890d02"
    assert operation_factory.fan_out(task, ["ada", "bob"], None, "raise").digest == "1:666946bedfbee63b"
    assert operation_factory.fan_out(task, [], None, "raise").digest == NO_ARGUMENTS


def test_a_child_is_identified_by_its_bound_arguments(task):
    assert spawned(task, "ada") == spawned(task, to="ada") == spawned(task, "ada", "hi")
    assert spawned(task, "ada", at=NOON) == spawned(task, "ada", at=NOON.astimezone(timezone(timedelta(hours=2))))
    assert spawned(task, "ada", tags={"a", "b", "c"}) == spawned(task, "ada", tags=["a", "b", "c"])
    assert spawned(task, "ada") != spawned(task, "bob")


def test_the_options_of_a_child_are_part_of_its_identity(task):
    assert spawned(task.options(priority=3), "ada") != spawned(task, "ada")
    assert spawned(task.options(priority=3), "ada") == spawned(task.options(priority=3), "ada")


def test_the_digest_of_a_map_depends_on_all_items_and_their_order(task):
    def digest(*items):
        return operation_factory.fan_out(task, items, None, "raise").digest

    assert digest("a", "b") == digest("a", "b")
    assert len({digest("a", "b"), digest("b", "a"), digest("a"), digest("a", "b", "b"), digest("ab")}) == 5


def test_the_concurrency_of_a_map_is_not_part_of_its_identity(task):
    assert (
        operation_factory.fan_out(task, ["a"], 1, "raise").base
        == operation_factory.fan_out(task, ["a"], 50, "return").base
    )


def test_a_map_may_be_larger_than_one_payload(task):
    big = "x" * 1_000_000
    assert len(operation_factory.fan_out(task, [big, big, big], None, "raise").requests) == 3
