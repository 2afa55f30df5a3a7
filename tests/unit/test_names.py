"""Validation of user-defined names, and dotted names of classes and functions."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import ConfigError
from holdfast.model.names import MAX_KEY_CHARS, check_name, counted, dotted_name


@pytest.mark.parametrize("name", ["default", "it's; drop table runs --", "données", "a b", "x" * 200])
def test_valid_names_are_returned_unchanged(name):
    assert check_name(name, "the queue") == name


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "must not be empty"),
        (None, "must be a str, not NoneType"),
        (b"x", "must be a str, not bytes"),
        ("a\0b", "control character"),
        ("a\nb", "control character"),
        ("a\x85b", "control character"),
        ("a\ud800b", "lone surrogate"),
        ("x" * 201, "may have at most 200 characters"),
        ("x" * 10_000, "has 10,000"),
    ],
)
def test_invalid_names_are_rejected_with_the_reason(name, fault):
    with pytest.raises(ConfigError, match=fault) as caught:
        check_name(name, "the queue")
    message = str(caught.value)
    assert message.startswith("the queue ")
    assert len(message) < 200
    message.encode()


def test_a_key_may_be_longer_than_a_name():
    assert check_name("k" * 500, "the key", MAX_KEY_CHARS) == "k" * 500
    with pytest.raises(ConfigError, match="may have at most 500"):
        check_name("k" * 501, "the key", MAX_KEY_CHARS)


@given(st.text())
def test_accepted_names_are_printable_utf8(text):
    try:
        outcome = check_name(text, "x")
    except ConfigError as error:
        outcome = str(error)
    assert "\0" not in outcome
    assert outcome.encode()


def test_a_class_in_a_script_is_named_after_its_file(monkeypatch):
    main = ModuleType("__main__")
    main.__file__ = "/somewhere/shop.py"
    monkeypatch.setitem(sys.modules, "__main__", main)
    thing = SimpleNamespace(__module__="__main__", __qualname__="Order")
    assert dotted_name(thing) == "shop.Order"


def test_a_class_in_a_module_run_with_m_is_named_after_the_module(monkeypatch):
    main = ModuleType("__main__")
    main.__file__ = "/somewhere/shop.py"
    main.__spec__ = SimpleNamespace(name="store.shop")
    monkeypatch.setitem(sys.modules, "__main__", main)
    thing = SimpleNamespace(__module__="__main__", __qualname__="Order")
    assert dotted_name(thing) == "store.shop.Order"


def test_a_counted_noun_is_singular_only_for_one():
    assert [counted(count, "run") for count in (0, 1, 2, 2000)] == ["0 runs", "1 run", "2 runs", "2,000 runs"]
    assert counted(2, "child", "children") == "2 children"
