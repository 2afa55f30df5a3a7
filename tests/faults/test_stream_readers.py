"""Readers of streams while workers are killed, and many of them on one dashboard."""

from __future__ import annotations

import asyncio
import random
import re
import secrets
import signal
import time

import psutil
import pytest

from holdfast import Holdfast
from tests.faults.apps.speech import transcript
from tests.faults.conftest import APPS
from tests.support.stream_readers import SocketReader
from tests.support.wait_until import wait_until

ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+")


def start_dashboard(processes, url, token):
    """Start `holdfast dashboard` in a process of its own and return it with its address."""
    command = ("-m", "holdfast.cli", "--url", url, "dashboard", "--port", "0", "--proxy", "127.0.0.1")
    process = processes.start(*command, env={"HOLDFAST_TOKEN": token})
    wait_until(lambda: ADDRESS.search(process.log), what="the dashboard listens")
    return process, ADDRESS.search(process.log)[0]


def check(readers, expected):
    for reader in readers:
        assert reader.problems == []
        assert reader.end["state"] == "done"
        assert reader.text == expected


async def follow_all(readers, cuts):
    async with asyncio.timeout(500):
        await asyncio.gather(*(reader.follow(cuts) for reader in readers))


def test_readers_have_the_transcript_although_the_worker_is_killed(processes, database_url):
    """Every reader also loses its connection a few times."""
    token = secrets.token_hex(32)
    app = Holdfast(database_url)
    app.store.prepare()
    _, base = start_dashboard(processes, database_url, token)
    worker = processes.start(APPS / "speech.py", database_url)
    run = app.remote("speak").enqueue(2, 25, 0.02)
    readers = [SocketReader(base, str(run.id), token, f"10.0.0.{n}", random.Random(n)) for n in range(12)]

    async def scenario():
        following = asyncio.ensure_future(follow_all(readers, cuts=3))
        while not any("1.5" in reader.text for reader in readers):
            await asyncio.sleep(0.01)
        worker.kill()
        processes.start(APPS / "speech.py", database_url)
        await following

    asyncio.run(scenario())
    check(readers, transcript(2, 25))
    assert any(reader.resets for reader in readers)
    assert sum(reader.connections for reader in readers) >= 2 * len(readers)

    app.close()


def test_a_dashboard_that_is_stopped_ends_its_streams(processes, database_url):
    """It doesn't wait for their readers: `SHUTDOWN_TIMEOUT_S` later, it would cut them off."""
    token = secrets.token_hex(32)
    app = Holdfast(database_url)
    app.store.prepare()
    dashboard, base = start_dashboard(processes, database_url, token)
    run = app.remote("nobody.knows").enqueue()
    readers = [SocketReader(base, str(run.id), token, "10.0.0.1", random.Random()) for _ in range(3)]

    async def scenario():
        following = [asyncio.ensure_future(reader.connect(None)) for reader in readers]
        while not all(reader.is_connected for reader in readers):
            await asyncio.sleep(0.01)
        dashboard.signal(signal.SIGINT)
        await asyncio.gather(*following)  # ended, not cut off: the last part of the response has come

    asyncio.run(scenario())
    assert dashboard.wait() == 130
    assert "timeout" not in dashboard.log.lower()
    assert "Traceback" not in dashboard.log
    app.close()


@pytest.mark.slow
def test_a_thousand_readers_on_one_dashboard_miss_and_repeat_nothing(processes, database_url):
    """Prints what the dashboard needed; `docs/streams.md` has the figures."""
    token, runs, count, pause = secrets.token_hex(32), 10, 1000, 0.2
    app = Holdfast(database_url)
    app.store.prepare()
    dashboard, base = start_dashboard(processes, database_url, token)
    worker = processes.start(APPS / "speech.py", database_url)
    process = psutil.Process(dashboard.pid)
    idle = process.memory_info().rss
    begun = [app.remote("speak").enqueue(3, 50, pause) for _ in range(runs)]
    readers = [
        SocketReader(base, str(begun[n % runs].id), token, f"10.0.{n // 50}.{n % 50}", random.Random(n))
        for n in range(count)
    ]
    most, cpu = [0], sum(process.cpu_times()[:2])
    began = time.monotonic()

    async def scenario():
        following = asyncio.ensure_future(follow_all(readers, cuts=2))
        killed = False
        while not following.done():
            await asyncio.sleep(0.2)
            most[0] = max(most[0], process.memory_info().rss)
            if not killed and sum("1.5" in reader.text for reader in readers) > count / 2:
                killed = True
                worker.kill()
                processes.start(APPS / "speech.py", database_url)
        await following
        assert killed

    asyncio.run(scenario())
    took = time.monotonic() - began
    cpu = sum(process.cpu_times()[:2]) - cpu
    check(readers, transcript(3, 50))
    events, connections = sum(each.received for each in readers), sum(each.connections for each in readers)
    print(  # noqa: T201
        f"{count} readers of {runs} runs, {events:,} events on {connections:,} connections in {took:.0f} s:"
        f" {cpu:.1f} s of CPU, {idle / 2**20:.0f} MB before, at most {most[0] / 2**20:.0f} MB"
    )
    app.close()
