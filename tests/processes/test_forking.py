"""An app survives `fork()`: the child opens connections of its own and leaves its parent's alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os, sys, threading, time
from holdfast import Holdfast

app = Holdfast(sys.argv[1])

@app.task(name="double")
def double(n: int) -> int:
    return 2 * n

def in_child(work):
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    return pid

def ended_well(*pids):
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * len(pids)
"""

CASES = {
    "children enqueue and wait, the parent works on": """
with app.worker():
    assert double.enqueue(1).result(timeout=60) == 2
    ended_well(*[in_child(lambda n=n: print(double.enqueue(n).result(timeout=60), flush=True)) for n in range(4)])
    assert double.enqueue(5).result(timeout=60) == 10
""",
    "a preloaded app works in its children": """
assert app.runs() == []
def serve():
    with app.worker():
        print(double.enqueue(3).result(timeout=60), flush=True)
ended_well(in_child(serve), in_child(serve))
assert {run.state for run in app.runs()} == {"done"}
""",
    "the parent closes while a child goes on": """
double.enqueue(1)
read, write = os.pipe()
def go_on():
    os.read(read, 1)
    assert len(app.runs()) == 1
    double.enqueue(2)
    assert len(app.runs()) == 2
pid = in_child(go_on)
app.close()
with Holdfast(sys.argv[1]) as another:
    assert len(another.runs()) == 1
os.write(write, b"x")
ended_well(pid)
assert len(app.runs()) == 2
""",
    "who waits hears of ends, the child by a listener of its own": """
from holdfast import RunCancelled
from holdfast.client import results
for name in ('FIRST_POLL_INTERVAL_S', 'MAX_POLL_INTERVAL_S', 'MAX_POLL_INTERVAL_LISTENING_S'):
    setattr(results, name, 3600.0)
def listens():
    while not app._client.results.waiter._listener.is_listening:
        time.sleep(0.001)
def is_cancelled(run):
    try:
        run.result(timeout=300)
    except RunCancelled:
        return
    raise AssertionError
runs = [double.enqueue(n) for n in range(2)]
waiting = threading.Thread(target=is_cancelled, args=(runs[0],))
waiting.start()
listens()
read, write = os.pipe()
def wait_too():
    threading.Thread(target=lambda: (listens(), os.write(write, b"x"))).start()
    is_cancelled(runs[1])
    assert len([thread for thread in threading.enumerate() if thread.name == "holdfast-completions"]) == 1
    app.close()
pid = in_child(wait_too)
os.read(read, 1)
with Holdfast(sys.argv[1]) as another:
    another.get_run(runs[1].id).cancel()
    ended_well(pid)
    assert waiting.is_alive()
    another.get_run(runs[0].id).cancel()
    waiting.join()
""",
    "forks in the middle of other threads' work lose nothing": """
threads = [threading.Thread(target=lambda: [double.enqueue(n) for n in range(50)]) for _ in range(4)]
for thread in threads:
    thread.start()
pids = [in_child(lambda: [double.enqueue(n) for n in range(10)]) for _ in range(5)]
for thread in threads:
    thread.join()
ended_well(*pids)
assert len(app.runs(limit=1000)) == 250, len(app.runs(limit=1000))
""",
}


@pytest.mark.parametrize("case", CASES)
def test_an_app_survives_a_fork(database_url, tmp_path, case):
    script = tmp_path / "forking.py"
    script.write_text(SCRIPT + CASES[case] + "\napp.close()\n")
    outcome = subprocess.run(
        [sys.executable, "-W", "ignore:This process:DeprecationWarning", str(script), database_url],
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert (outcome.returncode, outcome.stderr) == (0, "")
