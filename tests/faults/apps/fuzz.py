"""Run a durable function repeatedly and kill its worker at another commit each time: see `test_crash_fuzz.py`.

    fuzz.py URL FOLDER TASK before|after|each|inside FIRST STRIDE [STATEMENT …]

The kill points are FIRST, FIRST + STRIDE and so on, until a run finishes without a kill. `each`: every worker of a run
is killed after that many commits, not only the first; `inside`: the kill is between two statements of a user
transaction. Then it kills once at a commit with each of the statements: commits are grouped differently each time, so
counting alone may miss one. The facts of each point are a line of JSON in FOLDER/facts, which the test checks. Workers
are forks of this process, which has imported everything and opens no database itself.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Collection
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import psycopg

from holdfast import Holdfast, RunFinished, RunStarted
from tests.faults.apps.durable import NEAR, TABLE, Effects, make_app
from tests.support.commit_killer import CommitKiller
from tests.support.history_queries import fetch
from tests.support.ledger import Ledger
from tests.support.wait_until import wait_until

LONGEST = 30.0
MOST_KILLS = 60
NAMED_RESULTS = ("child", "alone", "near", "bulk", "ended")
"""Tasks whose result is the name of their effect."""
TRIES = 5  # not every run executes every statement: most waits end before their run is suspended
url, folder, task, mode = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4]
first, stride, statements = int(sys.argv[5]), int(sys.argv[6]), sys.argv[7:]
ledger, places, looks = Ledger(folder / "ledger"), Ledger(folder / "places"), Ledger(folder / "looks")
on_sqlite = url.startswith("sqlite")


class InsideKiller:
    """Kills the process after a number of statements of a step transaction."""

    def __init__(self, at: int) -> None:
        self._at = at

    def install(self) -> None:
        Effects.between = self._reach  # type: ignore[method-assign]

    def _reach(self, number: int) -> None:
        if number == self._at:
            places.write(number, "inside", "insert")
            os.kill(os.getpid(), signal.SIGKILL)


def look(app: Holdfast, mark: str) -> dict[str, Any]:
    """Return what database and ledger contain about one run and its descendants."""
    runs = fetch(
        app,
        "select r.id, task, state, result, error, parent, args, attempt, crashes from {}runs r"
        " join {}lanes l on l.id = r.lane order by seq",
    )
    ids = {str(row[0]) for row in runs if f'"{mark}"' in row[6] or f'"{mark} ' in row[6]}
    runs = [row for row in runs if str(row[0]) in ids or any(f'"id":"{id}"' in row[6] for id in ids)]  # and hooks
    kept = [row for row in fetch(app, "select run, key, kind, value from {}checkpoints") if str(row[0]) in ids]
    chunks = [row for row in fetch(app, "select run, data from {}chunks") if str(row[0]) in ids]
    rows = fetch(app, f"select name from effects where mark = '{mark}'")
    finished = [_name(key) for _, key, kind, _ in kept if kind in ("step", "undone")]
    finished += [json.loads(row[3]) for row in runs if row[1] in NAMED_RESULTS and row[2] == "done"]
    return {
        "runs": [[str(value) for value in row] for row in runs],
        "finished": sorted(finished),
        "rows": sorted(name for (name,) in rows),
        "chunks": len(chunks),
        "metadata": _of_runs(app, "metadata", ids),
        "values": _of_runs(app, "run_values", ids),
        "permits": fetch(
            app, "select place, used from {}limits where used <> 0 union all select key, 0 from {}step_permits"
        ),
        "effects": [words[1:3] for words in ledger.words() if words[0] == mark],
    }


def _of_runs(app: Holdfast, table: str, ids: Collection[str]) -> dict[str, Any]:
    """Return the names and values in a table, of these runs."""
    rows = fetch(app, f"select run, name, value from {{}}{table}")
    return {name: json.loads(value) for run, name, value in rows if str(run) in ids}


def _name(key: str) -> str:
    """Return the name of the effect that a checkpoint records."""
    if key.startswith("$undone:$undo:"):
        return "undo-plain"
    return f"undo-{key[8:].split('-')[0]}" if key.startswith("$undone:") else key.split("-")[0]


def prepare() -> None:
    app = make_app(url, ledger)
    app.store.prepare()
    if on_sqlite:
        with app.transaction() as connection:
            connection.execute(TABLE)
    else:
        with psycopg.connect(url) as own:
            own.execute(TABLE)


def work(mark: str, killer: CommitKiller | InsideKiller | None, *, new: bool) -> None:
    """Run a worker that starts a run, or takes over that of a dead worker, and finishes it."""
    if not new:
        _alone()
    app = make_app(url, ledger)
    if new:
        run = app.registry.names()[task].enqueue(mark)
        if task in ("everything", "plainly"):
            run.send("note", "first")
    else:
        looks.write(json.dumps(look(app, mark)))
    fetch(app, "update {}workers set lease_until = 1")  # recover the runs of dead sessions at once
    if killer is not None:
        killer.install()
    with ExitStack() as workers:
        if new and task == "flowing":  # of the next process, the only worker has no label
            workers.enter_context(app.worker(lease=60, queues=["near"], labels=NEAR))
        workers.enter_context(app.worker(lease=60, concurrency=8))
        try:
            wait_until(lambda: _finished(app), LONGEST, f"the end of {mark}")
        except AssertionError:
            for table in ("runs", "waits", "checkpoints", "workers"):
                print(table, *fetch(app, f"select * from {{}}{table}"), sep="\n")  # noqa: T201
            faulthandler.dump_traceback()
            raise
        looks.write(json.dumps(look(app, mark)))
        os._exit(0)


def _finished(app: Holdfast) -> bool:
    """Return whether all runs have ended; start a debounced run once no other is left."""
    left = fetch(
        app, "select id, debounce from {}runs where state not in ('done', 'failed', 'cancelled', 'skipped') limit 2"
    )
    if len(left) == 1 and left[0][1] is not None:
        with suppress(RunStarted, RunFinished):
            app.get_run(left[0][0]).update(run_at=datetime.now(UTC))
    return not left


def _alone() -> None:
    """Wait until the server has closed the connections of dead processes, so that their last statements are settled."""
    if not on_sqlite:
        others = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        with psycopg.connect(url, autocommit=True) as own:
            wait_until(lambda: own.execute(others).fetchone() == (0,), what="the end of the dead one's connections")


def forked(*given: Any, **more: Any) -> int:
    """Run a call in a separate process and return its exit code, negative if killed."""
    pid = os.fork()
    if pid == 0:
        try:
            given[0](*given[1:], **more)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stdout.flush()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def point(mark: str, n: int, statement: str | None = None) -> int:
    """Execute one run whose worker is killed at the Nth commit (of that statement); return the number of kills."""
    looks.path.unlink(missing_ok=True)
    places.path.unlink(missing_ok=True)
    killer = CommitKiller(n, "before" if mode == "before" else "after", places, statement)
    if mode == "inside":
        killer = InsideKiller(n)
    started = time.monotonic()
    codes = [forked(work, mark, killer, new=True)]
    while codes[-1] == -signal.SIGKILL and len(codes) < MOST_KILLS:
        codes.append(forked(work, mark, killer if mode == "each" else None, new=False))
    facts = {
        "mark": mark,
        "codes": codes,
        "places": places.lines(),
        "looks": [json.loads(line) for line in looks.lines()],
        "took": time.monotonic() - started,
    }
    with (folder / "facts").open("a") as file:
        file.write(json.dumps(facts) + "\n")
    if codes[-1] != 0:
        sys.exit(f"at point {mark}: {codes}")
    return len(codes) - 1


if __name__ == "__main__":
    assert forked(prepare) == 0
    at = first
    while point(f"{mode}-p{at:04d}", at):
        at += stride
    for name in statements:
        assert any(point(f"{mode}-{name}-{trial}", 1, name) for trial in range(TRIES)), f"no run executed {name}"
