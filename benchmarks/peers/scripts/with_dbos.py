"""DBOS: workflows from a queue; those that are measured one at a time, and on SQLite, are called without it."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import sqlalchemy
from dbos import DBOS, DBOSClient

if TYPE_CHECKING:
    from benchmarks.peers.scripts.run import Arguments, Told

QUEUE = "bench"
VERSION = "1"


def launch(told: Told, *, listens: bool) -> dict[str, Any]:
    """Start it in this process; its workflows by name."""

    @DBOS.workflow(name="noop")
    def noop(arguments: Arguments) -> None:
        told.handle(arguments)

    @DBOS.step()
    def trivial(number: int) -> dict[str, int]:  # noqa: ARG001 - as a step that is given something
        return {"ok": 1}

    @DBOS.workflow(name="steps")
    def steps(arguments: Arguments) -> int:  # noqa: ARG001 - a payload like any
        told.started()
        for number in range(told.steps):
            trivial(number)
        return 1

    config: dict[str, Any] = {
        "name": "bench",
        "system_database_url": told.url or f"sqlite:///{told.file}",
        "sys_db_pool_size": told.settings["pool"],
        "max_executor_threads": told.settings["threads"],
        "log_level": "ERROR",
        "run_admin_server": False,
        "application_version": VERSION,
        "executor_id": f"executor-{os.getpid()}",
    }
    DBOS(config=config)
    if not listens:
        DBOS.listen_queues([])
    DBOS.launch()
    return {"noop": noop, "steps": steps}


def register_queue(told: Told) -> None:
    """Before the launch: a worker that was launched with another interval goes on with that for long."""
    DBOSClient(system_database_url=told.url).register_queue(
        QUEUE,
        worker_concurrency=told.settings["concurrency"],
        polling_interval_sec=told.settings["poll"],
        on_conflict="always_update",
    )


class Enqueuer:
    """A single caller is spared the thread that the asynchronous call goes through. For many there is no call: one
    transaction of the caller's is the documented way."""

    def __init__(self, told: Told) -> None:
        self._client = DBOSClient(system_database_url=told.url)
        self._engine = sqlalchemy.create_engine(told.url.replace("postgresql://", "postgresql+psycopg://", 1))
        self._alone = told.callers == 1
        self._options: Any = {"queue_name": QUEUE, "workflow_name": told.task, "app_version": VERSION}

    async def one(self, arguments: Arguments) -> None:
        if self._alone:
            self._client.enqueue(self._options, arguments)
        else:
            await self._client.enqueue_async(self._options, arguments)

    async def many(self, arguments: Sequence[Arguments]) -> None:
        with self._engine.begin() as connection:
            for each in arguments:
                self._client.enqueue_in_transaction(connection, self._options, each)

    async def close(self) -> None:
        self._engine.dispose()


def prepare(told: Told) -> None:
    launch(told, listens=False)
    register_queue(told)
    DBOS.destroy()


def work(told: Told) -> None:
    register_queue(told)
    launch(told, listens=True)
    threading.Event().wait()


async def open_enqueuer(told: Told) -> Enqueuer:
    return Enqueuer(told)


def direct(told: Told) -> dict[str, float]:
    """Called from threads of this process."""
    workflow = launch(told, listens=False)[told.task]
    with ThreadPoolExecutor(told.settings["concurrency"]) as threads:
        since = time.perf_counter()
        list(threads.map(workflow, told.payloads()))
        seconds = time.perf_counter() - since
    DBOS.destroy()
    return {"rate": told.count / seconds, **({} if told.url else counted(told))}


def counted(told: Told) -> dict[str, float]:
    """What a file has on record."""
    with sqlite3.connect(told.file) as connection:
        done = connection.execute("select count(*) from workflow_status where status = 'SUCCESS'").fetchone()[0]
        return {"done": done, "steps": connection.execute("select count(*) from operation_outputs").fetchone()[0]}
