"""Any exception can be described and stored."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import Secret
from holdfast.errors import ErrorInfo, Fatal, StepFailed
from holdfast.model.failure import (
    MAX_MESSAGE_BYTES,
    MAX_TRACEBACK_BYTES,
    describe_exception,
    error_from_json,
    error_to_json,
)


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def caught(exception: BaseException) -> BaseException:
    try:
        raise exception
    except BaseException as error:  # noqa: BLE001, RUF100
        return error


def test_an_exception_is_described_by_type_message_and_traceback():
    info = describe_exception(caught(ValueError("too hot")))
    assert (info.code, info.type, info.message) == ("error", "ValueError", "too hot")
    assert "raise exception" in (info.traceback or "")
    assert (info.traceback or "").endswith("ValueError: too hot\n")


def test_a_non_builtin_exception_is_named_with_its_module():
    assert describe_exception(Mute()).type == f"{__name__}.Mute"


def test_an_exception_whose_str_raises_is_described():
    info = describe_exception(caught(Mute()), "fatal")
    assert info.code == "fatal"
    assert "__str__ raised ValueError" in info.message
    assert "Mute" in (info.traceback or "")
    assert error_from_json(error_to_json(info)) == info


def test_surrogates_and_nuls_are_escaped():
    info = describe_exception(caught(ValueError("a\ud800b\0c")))
    assert info.message == "a\\ud800b\\x00c"
    assert error_from_json(error_to_json(info)) == info


@pytest.mark.parametrize("character", ["x", "é", "\ud800", "\0"])
def test_a_huge_message_is_truncated(character):
    info = describe_exception(caught(ValueError(character * 3_000_000)))
    assert len(info.message.encode()) <= MAX_MESSAGE_BYTES
    assert info.message.endswith("3,000,000 characters in total)")
    assert len((info.traceback or "").encode()) <= MAX_TRACEBACK_BYTES
    assert "raise exception" in (info.traceback or "")


def test_a_long_traceback_keeps_its_end():
    def fail(depth: int, a_name_that_makes_lines_long: int = 0) -> None:
        if depth:
            (fail if depth % 2 else again)(depth - 1)
        raise ValueError("the bottom")

    def again(depth: int) -> None:
        fail(depth)

    info = describe_exception(caught_from(lambda: fail(300)))
    assert len((info.traceback or "").encode()) <= MAX_TRACEBACK_BYTES
    assert (info.traceback or "").startswith("(truncated; ")
    assert (info.traceback or "").endswith("ValueError: the bottom\n")


@pytest.mark.parametrize(
    ("data", "stored", "note"),
    [
        ({"code": 51}, {"code": 51}, ""),
        (["a", None, 1.5], ["a", None, 1.5], ""),
        (0, 0, ""),
        (None, None, ""),
        ({"card": Secret("4242")}, {"card": "***"}, ""),
        (object(), None, " (its data was left out: the data"),
        ({"at": float("nan")}, None, " (its data was left out: the data"),
        ("x" * 9000, None, " (its data was left out: it has 9,002 bytes, and 8,192 are allowed)"),
        ("a\0b", None, " (its data was left out: it has a NUL character)"),
    ],
)
def test_data_is_stored_or_left_out_with_a_note(data, stored, note):
    fatal = Fatal("declined", data=data)
    step = StepFailed("charge", describe_exception(fatal, "fatal"))
    for exception in (fatal, ExceptionGroup("all", [ValueError(), fatal]), step):
        info = describe_exception(exception, "fatal")
        assert info.data == stored
        assert error_from_json(error_to_json(info)) == info
        assert "4242" not in error_to_json(info)
    assert describe_exception(fatal).message.startswith(f"declined{note}")


def test_data_that_raises_when_it_is_read_is_left_out():
    class Odd(Fatal):
        @property
        def data(self):
            raise SystemExit

        @data.setter
        def data(self, value): ...

    assert describe_exception(Odd("x")).message == "x (its data was left out: reading it raised SystemExit)"


def caught_from(call):
    try:
        call()
    except Exception as error:
        return error
    raise AssertionError("nothing was raised")


@given(st.text(), st.text())
def test_any_message_round_trips(message, kind):
    info = describe_exception(
        type(kind.replace("\0", "").encode("ascii", "ignore").decode() or "E", (Exception,), {})(message)
    )
    assert error_from_json(error_to_json(info)) == info


@given(st.text(st.characters()), st.none() | st.text(st.characters()))
def test_any_error_info_round_trips(text, traceback):
    kept = error_from_json(error_to_json(ErrorInfo(text, text, text, traceback)))
    assert (kept.traceback is None) == (traceback is None)
    kept.message.encode()


@pytest.mark.parametrize("text", ["", "no json", "[1]", "null", '{"code":', "\ud800"])
def test_malformed_text_becomes_the_message_of_an_unknown_error(text):
    info = error_from_json(text)
    assert (info.code, info.type) == ("error", "unknown")
    assert info.message == text.encode("utf-8", "backslashreplace").decode()


def test_a_recursion_error_is_described():
    def forever() -> None:
        forever()

    info = describe_exception(caught_from(forever))
    assert info.type == "RecursionError"
    assert "recursion depth" in info.message
