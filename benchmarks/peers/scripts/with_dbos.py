"""DBOS. Workflows come from a queue; those measured one at a time or on SQLite are called directly."""

from __future__ import annotations

import asyncio
import importlib
import os
import sqlite3
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import sqlalchemy
from dbos import DBOS, DBOSClient

if TYPE_CHECKING:
    from benchmarks.peers.scripts.run import Arguments, PeerConfig

c: Any = importlib.import_module("continuations")  # beside this script, which has no package

QUEUE = "bench"
VERSION = "1"


def launch(config: PeerConfig, *, listens: bool) -> dict[str, Any]:
    """Start DBOS in this process and return its workflows by name."""

    @DBOS.workflow(name="noop")
    def noop(arguments: Arguments) -> None:
        config.handle(arguments)

    @DBOS.step()
    def trivial(number: int) -> dict[str, int]:  # noqa: ARG001 - a step with an argument
        return {"ok": 1}

    @DBOS.workflow(name="steps")
    def steps(arguments: Arguments) -> int:  # noqa: ARG001 - a realistic payload
        config.mark_start()
        for number in range(config.steps):
            trivial(number)
        return 1

    dbos_config: dict[str, Any] = {
        "name": "bench",
        "system_database_url": config.url or f"sqlite:///{config.file}",
        "sys_db_pool_size": config.settings["pool"],
        "max_executor_threads": config.settings["threads"],
        "log_level": "ERROR",
        "run_admin_server": False,
        "application_version": VERSION,
        "executor_id": f"executor-{os.getpid()}",
    }
    DBOS(config=dbos_config)
    if not listens:
        DBOS.listen_queues([])
    DBOS.launch()
    return {"noop": noop, "steps": steps}


def register_queue(config: PeerConfig) -> None:
    """Register the queue. Must precede the launch: a running worker adopts a new polling interval only late."""
    DBOSClient(system_database_url=config.url).register_queue(
        QUEUE,
        worker_concurrency=config.settings["concurrency"],
        polling_interval_sec=config.settings["poll"],
        on_conflict="always_update",
    )


class Enqueuer:
    """Enqueues through a client.

    A single caller uses the synchronous call, which needs no thread. There is no bulk call; the documented way is to
    enqueue in one transaction.
    """

    def __init__(self, config: PeerConfig) -> None:
        self._client = DBOSClient(system_database_url=config.url)
        self._engine = sqlalchemy.create_engine(config.url.replace("postgresql://", "postgresql+psycopg://", 1))
        self._alone = config.callers == 1
        self._options: Any = {"queue_name": QUEUE, "workflow_name": config.task, "app_version": VERSION}

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


def prepare(config: PeerConfig) -> None:
    launch(config, listens=False)
    register_queue(config)
    DBOS.destroy()


def work(config: PeerConfig) -> None:
    register_queue(config)
    launch(config, listens=True)
    threading.Event().wait()


async def open_enqueuer(config: PeerConfig) -> Enqueuer:
    return Enqueuer(config)


def direct(config: PeerConfig) -> dict[str, float]:
    """Call the workflow from threads of this process."""
    workflow = launch(config, listens=False)[config.task]
    with ThreadPoolExecutor(config.settings["concurrency"]) as threads:
        started = time.perf_counter()
        list(threads.map(workflow, config.payloads()))
        seconds = time.perf_counter() - started
    DBOS.destroy()
    return {"rate": config.count / seconds, **({} if config.url else count_records(config))}


def measure_continuations(config: PeerConfig) -> dict[str, float]:
    """Measure how fast work continues, in one process; return milliseconds by operation."""
    received: SimpleQueue[int] = SimpleQueue()
    workflows, receives = continuation_workflows(), receiver_workflow(received)
    launch(config, listens=False)
    count = config.count
    job = workflows["job"]
    handle = DBOS.start_workflow(receives, count)
    found = {
        c.MESSAGE: c.median_receipt_ms(count, received, lambda n: DBOS.send(handle.workflow_id, n, "go")),
        c.STEP: c.per_operation(workflows["steps"], count),
        c.CHILD_CALL: c.per_operation(workflows["calls"], count),
        c.SPAWN_JOIN: c.per_operation(workflows["spawns"], count),
        c.RESULT: c.median_ms(count, lambda number: DBOS.start_workflow(job, number).get_result()),
    }
    DBOS.destroy()
    return found


def measure_agents(config: PeerConfig) -> dict[str, float]:
    """Return the median milliseconds of an agent's turn, with pydantic-ai's own capability for DBOS."""
    from pydantic_ai.durable_exec.dbos import DBOSDurability

    turns: Any = importlib.import_module("agent_turns")
    timed = turns.TimedAgent(config.count, [DBOSDurability()], wrap_tool=DBOS.step())

    @DBOS.workflow(name="converse")
    async def converse() -> str:
        return str(await timed.run())

    launch(config, listens=False)
    asyncio.run(converse())
    DBOS.destroy()
    return {"": timed.median_ms()}


def continuation_workflows() -> dict[str, Any]:
    """Return the workflows that perform a number of operations each, by name, and the job that they call."""

    @DBOS.step()
    def trivial_step(number: int) -> int:
        return number + 1

    @DBOS.workflow(name="job")
    def job(number: int) -> int:
        return number + 1

    @DBOS.workflow(name="count_steps")
    def count_steps(count: int) -> None:
        for number in range(count):
            trivial_step(number)

    @DBOS.workflow(name="calls")
    def calls(count: int) -> None:
        for number in range(count):
            job(number)

    @DBOS.workflow(name="spawns")
    def spawns(count: int) -> None:
        handles = [DBOS.start_workflow(job, number) for number in range(count)]
        for handle in handles:
            handle.get_result()

    return {"job": job, "steps": count_steps, "calls": calls, "spawns": spawns}


def receiver_workflow(received: SimpleQueue[int]) -> Any:
    @DBOS.workflow(name="receives")
    def receives(count: int) -> None:
        for _ in range(count):
            received.put(DBOS.recv("go", timeout_seconds=60))

    return receives


def count_records(config: PeerConfig) -> dict[str, float]:
    """Count workflows and steps in the SQLite file."""
    with sqlite3.connect(config.file) as connection:
        done = connection.execute("select count(*) from workflow_status where status = 'SUCCESS'").fetchone()[0]
        return {"done": done, "steps": connection.execute("select count(*) from operation_outputs").fetchone()[0]}
