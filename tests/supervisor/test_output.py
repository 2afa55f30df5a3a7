"""The output of worker processes: whole lines, each with the number of its worker."""

from __future__ import annotations

import os
import re
import signal

import pytest

from holdfast.engine.processes.supervisor import MAX_LINE_BYTES, OutputReader, RestartPolicy, Slot, describe_exit
from tests.support.wait_until import wait_until


@pytest.fixture
def pipe():
    shown = []
    readable, writable = os.pipe()
    output = OutputReader(7, readable, lambda number, lines: shown.append((number, lines)))
    yield output, writable, shown
    output.close()
    os.close(writable)


def test_a_line_is_shown_when_it_is_whole(pipe):
    output, writable, shown = pipe
    os.write(writable, b"one\ntw")
    assert output.read() is True
    os.write(writable, b"o\n\xff\n")
    output.read_all()
    assert shown == [(7, [b"one"]), (7, [b"two", b"\xff"])]


def test_nothing_to_read_is_not_the_end(pipe):
    output, _writable, shown = pipe
    assert output.read() is None
    assert shown == []


def test_a_last_line_without_its_end_is_shown_at_the_end():
    shown = []
    readable, writable = os.pipe()
    output = OutputReader(1, readable, lambda _, lines: shown.extend(lines))
    os.write(writable, b"and then")
    os.close(writable)
    output.close()
    assert shown == [b"and then"]
    assert output.read() is False


def test_a_line_without_end_does_not_fill_the_memory(pipe):
    output, writable, shown = pipe
    for _ in range(4):
        os.write(writable, b"x" * (MAX_LINE_BYTES // 2))
        output.read_all()
    assert [len(line) for _, lines in shown for line in lines] == [MAX_LINE_BYTES] * 2


def test_pauses_double_up_to_the_longest():
    slot = Slot(1)
    slot.failed_starts = 1
    pauses = []
    for slot.deaths in range(1, 9):
        pauses.append(slot.pause(RestartPolicy()))
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30]
    slot.deaths = 100_000
    assert slot.pause(RestartPolicy()) == 30


def test_a_worker_that_died_after_its_start_is_replaced_soon():
    slot = Slot(1)
    pauses = []
    for slot.deaths in range(1, 9):
        pauses.append(slot.pause(RestartPolicy()))
    assert pauses == [0.5, 1, 2, 2, 2, 2, 2, 2]


@pytest.mark.parametrize(
    ("code", "words"),
    [(0, "exited with code 0"), (-9, "was killed by SIGKILL"), (-63, "was killed by signal 63")],
)
def test_exits_are_described_in_words(code, words):
    assert describe_exit(code) == words


def test_lines_of_workers_are_whole_and_numbered(app, supervise):
    supervisor = supervise(3)
    lengths = [(n, 10 if n % 2 else 20_000) for n in range(60)]
    for run in app.remote("talk").enqueue_many(lengths):
        run.result(60)
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait() == 0
    lines = supervisor.log.splitlines()
    assert [line for line in lines if not re.match(r"(worker [123]|holdfast) \| ", line)] == []
    talk = [re.fullmatch(r"worker \d \| <(\d+) (x+) (\d+)>", line) for line in lines if "<" in line]
    assert sorted((int(m[1]), len(m[2])) for m in talk if m and m[1] == m[3]) == sorted(lengths)


def test_what_tasks_print_is_shown_when_they_print_it(app, supervise):
    supervisor = supervise(1)
    app.remote("talk").enqueue(1, 3)
    supervisor.wait_for("worker 1 | <1 xxx 1>")


def test_there_are_no_colours_where_there_is_no_terminal(supervise):
    supervisor = supervise(1)
    assert "\x1b" not in supervisor.log


def test_no_color_comes_before_force_color(supervise):
    plain = supervise(1, NO_COLOR="1", FORCE_COLOR="1")
    assert "\x1b" not in plain.log


def test_forced_colours_reach_the_workers_too(supervise):
    supervisor = supervise(1, wait=False, FORCE_COLOR="1")
    wait_until(lambda: "worker started" in supervisor.log, 60, "a worker")
    assert re.search("\x1b\\[36mworker 1 \\| \x1b\\[0m\x1b\\[2m[\\d:]{8}\x1b\\[0m INFO", supervisor.log)


def test_programs_of_tasks_do_not_read_the_supervisors_messages(app, supervise):
    supervisor = supervise(1)
    assert "EOFError" in app.remote("read_input").enqueue().result(30)
    supervisor.signal(signal.SIGTERM)
    assert supervisor.wait() == 0
