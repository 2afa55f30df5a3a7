"""User code that writes to the result pipe of its process fails as a crash of that process; the pool goes on."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from holdfast import Holdfast, Retry, RunFailed
from holdfast.engine.processes import pool
from holdfast.engine.processes.framing import BEGUN, END, BadFrame, encode_frame, read_frame
from tests.processes import tasks

ATTACKS = {
    "a length of 4 GB": ("E", "", 2**32 - 1, True, "announced 4,294,967,295 bytes"),
    "a length over the limit": ("E", "x", 2 * 2**21 + 2**20, True, "announced 5,242,880 bytes"),
    "half a message": ("E", "half", 1000, True, "incomplete message"),
    "half a header": ("", "", 0, False, "result pipe"),
    "another type": ("B", "", None, True, "type b'B'"),
    "no JSON": ("E", "{oops", None, True, "malformed result"),
    "another shape": ("E", "[1, 2]", None, True, "malformed result"),
    "unknown fields": ("E", '{"kind":"done","state":"done","result":"1","id":"x"}', None, True, "malformed result"),
    "another kind of end": ("E", '{"kind":"crashed","state":"ready"}', None, True, "malformed result"),
    "contradictory parts": ("E", '{"kind":"done","state":"failed","result":"1"}', None, True, "contradict"),
    "a huge number": ("E", '{"kind":"failed","state":"failed","failed":2147483647}', None, True, "malformed result"),
}


def test_whatever_a_task_writes_to_its_pipe_crashes_only_its_own_process(sqlite_url, monkeypatch):
    monkeypatch.setattr(pool, "STALL_TIMEOUT_S", 0.5)
    with Holdfast(sqlite_url) as app:
        settings = {"run_in": "process", "retry": Retry(max_attempts=1), "max_crashes": 0}
        attack, own_pid = app.task(**settings)(tasks.attack_the_pipe), app.task(**settings)(tasks.own_pid)
        with app.worker(concurrency=1):
            for name, (kind, data, announced, tagged, message) in ATTACKS.items():
                run = attack.enqueue(kind, data, announced, tagged)
                with pytest.raises(RunFailed, match=message) as caught:
                    run.result(timeout=60)
                assert caught.value.error.code == "crashed", name
                assert own_pid.enqueue().result(timeout=60) != os.getpid()


def test_a_result_may_be_as_large_as_the_payload_limit_of_the_app(sqlite_url):
    """In the pipe it is twice as long: every character of this one is escaped."""
    size = 3 * 2**20
    with Holdfast(sqlite_url, refuse_above=8 * 2**20, warn_above=None) as app:
        return_text = app.task(run_in="process", retry=Retry(max_attempts=1))(tasks.return_text)
        with app.worker():
            assert return_text.enqueue(size).result(timeout=60) == '"' * size


@pytest.fixture
def child(monkeypatch):
    """A process of the pool that is alive, with pipes that the test holds."""
    monkeypatch.setattr(pool, "POLL_INTERVAL_S", 0.01)
    child = object.__new__(pool.TaskProcess)
    child.requests, child._requests = os.pipe()
    child._answers, child.answers = os.pipe()
    os.set_blocking(child._requests, False)
    child._max_answer_bytes = 1000
    child._process = SimpleNamespace(poll=lambda: None, pid=7)
    yield child
    for file in (child.requests, child._requests, child._answers, child.answers):
        os.close(file)


def test_a_process_that_never_begins_is_given_up(child, monkeypatch):
    """Leftover code of an earlier attempt took the request from the pipe, or keeps the GIL."""
    monkeypatch.setattr(pool, "BEGIN_TIMEOUT_S", 0.05)
    assert child.send({"run": "x"}) is False


def test_a_process_that_does_not_read_a_large_request_is_given_up(child, monkeypatch):
    monkeypatch.setattr(pool, "BEGIN_TIMEOUT_S", 0.05)
    assert child.send({"args": "x" * 1_000_000}) is False


@pytest.mark.parametrize("part", [1, 5, 13, 16, 20])
def test_a_message_that_stays_incomplete_is_a_bad_frame(child, monkeypatch, part):
    monkeypatch.setattr(pool, "STALL_TIMEOUT_S", 0.05)
    child._tag = bytes(12)
    os.write(child.answers, encode_frame(END, b"answer", child._tag)[:part])
    with pytest.raises(BadFrame, match="incomplete"):
        child._answer(END)


def test_a_whole_message_is_read(child):
    child._tag = bytes(12)
    os.write(child.answers, encode_frame(END, b"answer", child._tag))
    assert child._answer(END) == b"answer"


def test_the_length_is_checked_before_the_data_is_read(child):
    os.write(child.answers, encode_frame(BEGUN, b"x" * 11))
    with pytest.raises(BadFrame, match="announced 11 bytes, more than 10"):
        read_frame(child._answers, BEGUN, 10)
