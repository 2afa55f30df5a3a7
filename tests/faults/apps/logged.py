"""Kill the worker of a durable function right before or after a commit with log lines, then let another one finish it.

    logged.py URL FOLDER

The facts of each kill point are a line of JSON in FOLDER/facts: when and at which commit, the exit code, and the lines
that are kept. Workers are forks of this process, which opens no database itself.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from holdfast import Context, Holdfast
from holdfast.engine import run_logs
from tests.support.commit_killer import CommitKiller
from tests.support.history_queries import fetch
from tests.support.ledger import Ledger

url, folder = sys.argv[1], Path(sys.argv[2])
facts, places = Ledger(folder / "facts"), Ledger(folder / "places")
run_logs.FLUSH_INTERVAL_S = 600  # only checkpoints and ends flush, so that commits have known numbers
logger = logging.getLogger("tests.logged")
logger.setLevel(logging.INFO)


def say(what: str) -> str:
    logger.info("in %s", what)
    return what


def make_app() -> Holdfast:
    app = Holdfast(url, logs="info")

    @app.task(name="order")
    async def order(ctx: Context, mark: str) -> str:
        logger.info("begins")
        await ctx.step(say, "a")
        logger.info("between")
        await ctx.step(say, "b")
        logger.info("ends")
        return mark

    return app


def killed(mark: str, when: str, at: int) -> None:
    app = make_app()
    app.registry.get("order").options(key=mark).enqueue(mark)
    CommitKiller(at, when, places, statement="add_logs").install()
    app.worker(max_resident=0).drain(timeout=60)


def finish(mark: str, when: str, at: int, code: int) -> None:
    app = make_app()
    fetch(app, "update {}workers set lease_until = 1")  # recover the runs of the dead session at once
    run = app.registry.get("order").options(key=mark).enqueue(mark)
    with app.worker(max_resident=0):
        run.result(timeout=60)
    lines = [[line.attempt, line.message] for line in run.logs()]
    facts.write(json.dumps({"when": when, "at": at, "code": code, "lines": lines, "dropped": run.logs().dropped}))


def forked(call: Callable[..., None], *given: object) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            call(*given)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    for when in ("before", "after"):
        for at in (1, 2, 3):
            mark = f"{when}-{at}"
            code = forked(killed, mark, when, at)
            if forked(finish, mark, when, at, code):
                sys.exit(1)
