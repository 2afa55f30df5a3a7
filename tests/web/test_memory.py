"""What a request reads is bounded, whatever is stored."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast import Graph
from holdfast.cli.commands import holdfast
from holdfast.model.payloads import PayloadContext, Payloads
from holdfast.model.previews import MAX_SHOWN_BYTES, PayloadView
from holdfast.web import request_threads
from tests.support.large_payloads import LIMIT, execute, large_json, packed

MAX_PEAK_BYTES = 100 * 1000 * 1000
HERE = PayloadContext("args")


@pytest.mark.slow
def test_no_request_takes_100_mb_whatever_the_database_holds(database_url):
    command = [sys.executable, "-m", "tests.support.large_payloads", database_url]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root, timeout=550)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(found) > 100
    assert [each for each in found if each["status"] >= 500] == []
    worst = max(found, key=lambda each: each["peak"])
    assert worst["peak"] < MAX_PEAK_BYTES, worst


def test_lists_leave_results_out_and_never_decompress_long_arguments(shop, open_visitor, database_url, monkeypatch):
    run = shop.add.enqueue(1, 2)
    shop.drain()
    unpacked = []
    unpack = Payloads._unpack
    monkeypatch.setattr(Payloads, "_unpack", lambda *given: unpacked.append(given[-1]) or unpack(*given))
    execute(
        database_url,
        "update holdfast_runs set args = :value, result = :value",
        {"value": packed('["' + "a" * (LIMIT - 100) + '"]')},
    )
    (listed,) = open_visitor.get("/api/v1/runs").json["runs"]
    assert (listed["id"], listed["result"]) == (str(run.id), None)
    assert listed["args"].startswith("(")
    assert all(limit <= 16 * 1024 for limit in unpacked)
    assert run.info().args is not None


def test_a_response_contains_payloads_up_to_a_bound_and_names_the_rest(shop, open_visitor, database_url):
    runs = shop.listen.enqueue()
    shop.drain()
    large = '["' + "a" * (LIMIT - 100) + '"]'
    execute(database_url, "update holdfast_checkpoints set value = :value", {"value": packed(large)})
    details = open_visitor.get(f"/api/v1/runs/{runs.id}").json
    assert details["steps"][0]["value"] == ["a" * (LIMIT - 100)], "one that fits is whole"
    view = PayloadView(shop.app.store.payloads)
    shown = [view.value(packed(large), HERE) for _ in range(6)]
    whole = [each for each in shown if not isinstance(each, str)]
    assert len(whole) == MAX_SHOWN_BYTES // LIMIT
    assert shown[-1].startswith("(omitted: ")
    assert open_visitor.get(f"/runs/{runs.id}").status == 200


def test_a_large_part_of_a_value_and_a_cut_history_are_shown_by_page_and_command(shop, open_visitor, database_url):
    graph = Graph("large")
    for name in ("first", "second"):
        graph.add(shop.add, 1, 2, name=name)
    run = shop.app.submit(graph)
    shop.drain()
    large = packed('["' + "a" * 300_000 + '"]')
    execute(database_url, "update holdfast_runs set result = :value where node is not null", {"value": large})
    page = open_visitor.get(f"/runs/{run.id}").text
    assert "a" * 1000 in page
    assert "msgspec.Raw" not in page
    waiting = shop.listen.enqueue()
    shop.drain()
    execute(database_url, "update holdfast_history set at = 1 where kind = 'waiting'", {})
    execute(database_url, "update holdfast_history set since = null, kind = 'step_retrying'", {})
    for id in (run.id, waiting.id):
        shown = CliRunner().invoke(holdfast, ["--url", database_url, "show", str(id)])
        assert shown.exit_code == 0, shown.output
    assert open_visitor.get(f"/runs/{waiting.id}").status == 200


def test_a_large_payload_with_a_secret_is_never_shown_unmasked(shop):
    for marker in ('"$secret"', '"\\u0024secret"', '"$s\\u0065cret"'):
        text = '{"a":"' + "x" * 300_000 + '","b":{' + marker + ':"tiger"}}'
        shown = PayloadView(shop.app.store.payloads).value(text, HERE)
        assert shown == f"(omitted: {len(text):,} bytes; it has secrets and is too large to mask them)"
        small = PayloadView(shop.app.store.payloads).value('{"b":{' + marker + ':"tiger"}}', HERE)
        assert small == {"b": "***"}


def test_json_with_more_objects_than_fit_into_memory_is_refused(shop, open_visitor):
    body = f'{{"task":"add","args":[{large_json()}]}}'.encode()
    headers = {"content-type": "application/json"}
    token = {"authorization": "Bearer " + shop.control.tokens.create("operate", None, "x").token}
    answer = open_visitor.ask("POST", "/api/v1/runs", body, headers | token)
    assert (answer.status, answer.json["code"]) == (413, "too_large")
    assert "so many objects" in answer.json["detail"]
    text = json.dumps("[{," * 500_000)
    body = f'{{"task":"add","args":[{text}, 2]}}'.encode()
    answer = open_visitor.ask("POST", "/api/v1/runs", body, headers | token)
    assert answer.status == 422, "the same characters in a string are no objects; it isn't a number, though"


def test_blocking_work_has_threads_of_its_own(shop, open_visitor, monkeypatch):
    """A site that is mounted in another application doesn't take that application's default executor."""
    names = []
    authenticate = shop.control.tokens.__class__.list

    def listed(self):
        names.append(threading.current_thread().name)
        return authenticate(self)

    monkeypatch.setattr(shop.control.tokens.__class__, "list", listed)

    async def many():
        threads = request_threads.RequestThreads()
        running = set()
        most = 0
        lock = threading.Lock()

        def work(n):
            nonlocal most
            with lock:
                running.add(n)
                most = max(most, len(running))
            threading.Event().wait(0.01)
            with lock:
                running.discard(n)
            return threading.current_thread().name

        found = await asyncio.gather(*(threads.run(work, n) for n in range(40)))
        threads.close()
        return found, most

    found, most = asyncio.run(many())
    assert most <= request_threads.MAX_THREADS
    assert all(name.startswith("holdfast-web") for name in found)
    assert open_visitor.get("/api/v1/tokens").status == 200
    assert all(name.startswith("holdfast-web") for name in names), names
    assert names
