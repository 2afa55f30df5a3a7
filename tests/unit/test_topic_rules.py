"""Which topics a pattern selects, which payloads a condition selects, and which of them are refused."""

from __future__ import annotations

import pytest

from holdfast import ConfigError, Holdfast, Topic
from holdfast.model.topics import check_topic, check_topics, check_where, inbox_of, parse_inbox, values_digest
from holdfast.policy.topic_rules import field_values, has_values, matches, selects


@pytest.mark.parametrize(
    ("pattern", "topic", "expected"),
    [
        ("orders.paid", "orders.paid", True),
        ("orders.paid", "orders.paid.twice", False),
        ("orders.*", "orders.paid", True),
        ("orders.*", "orders.eu.paid", True),
        ("orders.*", "orders", False),
        ("orders.*", "orders2.paid", False),
        ("*", "orders", True),
        ("*", "orders.eu.paid", True),
        ("*.paid", "orders.eu.paid", True),
        ("*.paid", "paid", False),
        ("orders.*.paid", "orders.eu.north.paid", True),
        ("orders.*.paid", "orders.paid", False),
        ("*.*", "orders", False),
        ("*.*", "orders.paid", True),
        ("a.*.a.*", "a.a.a.a", True),
        ("a.*.b.*.c", "a.b.b.b.c", True),
        ("a.*.b.*.c", "a.b.b.c", False),
    ],
)
def test_a_star_stands_for_one_or_more_segments(pattern, topic, expected):
    assert matches(pattern, topic) is expected


def test_a_pattern_of_many_stars_is_matched_at_once():
    assert not matches(".".join(["*"] * 99 + ["b"]), ".".join(["a"] * 100))


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({}, True),
        ({"country": "NO"}, True),
        ({"country": "SE"}, False),
        ({"cents": 4200}, True),
        ({"cents": 4200.0}, True),
        ({"rate": 0.5}, True),
        ({"gift": True}, True),
        ({"gift": 1}, False),
        ({"one": True}, False),
        ({"note": None}, True),
        ({"missing": None}, False),
        ({"customer.name": "ada"}, True),
        ({"customer.name.first": "ada"}, False),
        ({"customer": None}, False),
        ({"country": "NO", "gift": False}, False),
    ],
)
def test_a_payload_must_have_all_values(where, expected):
    payload = {
        "country": "NO", "cents": 4200, "rate": 0.5, "gift": True, "one": 1, "note": None, "customer": {"name": "ada"},
    }  # fmt: skip
    assert has_values(payload, check_where(where, "where")) is expected
    found = field_values(payload, sorted(where))
    wanted = values_digest(check_where(where, "where").values())
    assert (found is not None and values_digest(found) == wanted) is expected, "both ways to compare agree"


@pytest.mark.parametrize("payload", [None, 3, "text", [1], [{"country": "NO"}]])
def test_a_payload_that_is_no_object_has_no_fields(payload):
    assert not selects([Topic("orders", {"country": "NO"})], "orders", payload)
    assert selects([Topic("orders")], "orders", payload)


def test_an_inbox_is_the_same_for_equal_conditions():
    one, other = check_where({"b": 2.0, "a": "x"}, "where"), check_where({"a": "x", "b": 2}, "where")
    assert inbox_of("orders.paid", one) == inbox_of("orders.paid", other)
    assert parse_inbox(inbox_of("orders.paid", one)) == Topic("orders.paid", {"a": "x", "b": 2})
    assert parse_inbox("orders.paid") is None


@pytest.mark.parametrize("name", ["", "orders.", ".paid", "a..b", "orders.*", "a\nb", "x" * 201, 3])
def test_an_invalid_topic_is_refused(name):
    with pytest.raises(ConfigError):
        check_topic(name, "the topic")


@pytest.mark.parametrize(
    "given",
    [
        "", [], "orders*", "a..b", 3, [3], ["orders"] * 21, Topic("orders", {"": 1}), Topic("orders", {"a..b": 1}),
        Topic("orders", {"a": [1]}), Topic("orders", {"a": float("nan")}), Topic("orders", {"a": "x" * 1001}),
        Topic("orders", {f"f{n}": n for n in range(11)}), Topic("orders", ["a"]), Topic("orders", {3: 1}),
    ],
)  # fmt: skip
def test_an_invalid_subscription_is_refused(given):
    with pytest.raises(ConfigError):
        check_topics(given, "on")


def test_a_subscribing_task_takes_one_argument():
    app = Holdfast("sqlite:///never-made.db")
    with pytest.raises(ConfigError, match="only argument"):

        @app.task(on="orders.paid", name="two")
        def two(order: int, more: int) -> None: ...

    with pytest.raises(ConfigError, match="only argument"):

        @app.task(on="orders.paid", name="none")
        def none() -> None: ...


def test_a_limit_by_the_payload_is_refused():
    app = Holdfast("sqlite:///:memory:")
    app.limit("customer", concurrency=1, by="order")

    @app.task(on="orders.paid", name="ship", limits=["customer"])
    def ship(order: int) -> None: ...

    with app, pytest.raises(ConfigError, match="can't depend on the message"):
        app.publish("orders.paid", 3)
