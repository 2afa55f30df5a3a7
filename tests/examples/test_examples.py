"""Run each example in an empty directory, a second time, and interrupted."""

from __future__ import annotations

import ast
import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from httpx2 import Client, TransportError

from holdfast import Holdfast
from tests.support.processes import Process, Processes, run_python
from tests.support.stream_readers import SocketReader
from tests.support.wait_until import wait_until

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
ENVIRONMENT["PYTHONUNBUFFERED"] = "1"

# The end of the output of every start; output of the first start only; the output after which the test interrupts it.
ENDS = {
    "agent": "answer: Oslo: rain, 4 degrees and Rome: rain, 4 degrees and 17 * 23 = 391",
    "cart": "Bob paid 190 for anchor, rope (card blue)",
    "checkout": "stock: {'anchor': 2, 'rope': 9}",
    "cpu_work": "never_ends: timeout: the attempt took longer than its timeout of 1 s",
    "crawler": "17 pages: anchor.test 6, lamp.test 4, rope.test 6",
    "event_driven_orders": "3 orders delivered, 195 earned",
    "file_import": "customers.csv: 19,980 good, 20 bad, see the table rejected",
    "nightly_etl": "182 rows are in the sales table",
    "sqlalchemy_orders": " invoices",
    "subscription": "Eve: ended, month 1 was never paid",
    "support_agent": " was shipped this morning.",
    "trip_planner": "answer: booked 07:25 to Oslo and Hotel Anchor in Oslo",
}
EFFECTS = {
    "agent": "[weather: Rome]",
    "cart": "Ada: charged 190",
    "checkout": "order 1: 42.00 charged",
    "crawler": "reading http://lamp.test/2",
    "event_driven_orders": "order 1: 25 charged",
    "file_import": "%, ",
    "nightly_etl": "loaded 182 rows",
    "subscription": "Bob: month 1 paid",
    "support_agent": "[looked up y]",
    "trip_planner": "[booked Hotel Anchor in Oslo",
}
CUTS = {
    "agent": "Oslo: rain",
    "cart": "Ada: charged 190",
    "checkout": "order 3: 99.00 charged",
    "crawler": "reading http://anchor.test/1",
    "event_driven_orders": "charged",
    "file_import": "%, ",
    "sqlalchemy_orders": "is being paid",
    "subscription": "Bob: month 1 not paid",
    "support_agent": "Which order is it?",
    "trip_planner": "[searched trains]",
}
EXPENSIVE = ("cpu_work", "support_agent", "trip_planner")
"""A start of these takes seconds of CPU. They are started twice with --slow only."""


def path_of(name: str) -> Path:
    return ROOT / "examples" / f"{name}.py"


def run_example(name: str, folder: Path, *args: str, answer: str = "y\n") -> subprocess.CompletedProcess[str]:
    return run_python(path_of(name), *args, cwd=folder, env=ENVIRONMENT, answer=answer, timeout=120)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    started = Processes(tmp_path)
    yield started
    started.close()


def cut_off(processes: Processes, name: str, number: signal.Signals) -> tuple[str, int]:
    """Return the output until a signal ended the example, and its exit code."""
    process = processes.start(path_of(name), env={"PYTHONUNBUFFERED": "1"})
    process.wait_for(CUTS[name], 60)
    process.signal(number)
    code = process.wait()
    return process.log, code


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_names_its_command_and_is_listed(path):
    doc = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert re.search(rf"^    python {path.name}$", doc, re.MULTILINE)
    assert f"(../examples/{path.name})" in (ROOT / "docs" / "examples.md").read_text()


@pytest.mark.parametrize("name", ENDS)
def test_an_example_works_in_an_empty_folder_and_repeats_nothing(name, tmp_path, request):
    first = run_example(name, tmp_path)
    assert (first.returncode, first.stderr) == (0, "")
    assert first.stdout.rstrip().endswith(ENDS[name])
    assert EFFECTS.get(name, "") in first.stdout
    if name == "crawler":
        check_rate_per_host(tmp_path)
    if name in EXPENSIVE and not request.config.getoption("--slow"):
        return
    second = run_example(name, tmp_path, answer="")
    assert (second.returncode, second.stderr) == (0, "")
    assert second.stdout.rstrip().endswith(ENDS[name])
    if name in EFFECTS:
        assert EFFECTS[name] not in second.stdout


@pytest.mark.parametrize(
    "name", [name if name == "checkout" else pytest.param(name, marks=pytest.mark.slow) for name in CUTS]
)
def test_an_example_resumes_after_ctrl_c(name, processes, tmp_path):
    output, code = cut_off(processes, name, signal.SIGINT)
    assert code == 1
    assert output.rstrip().endswith("to continue")
    assert "Traceback" not in output
    again = run_example(name, tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.rstrip().endswith(ENDS[name])


def test_the_import_prints_how_to_approve_it_later(tmp_path):
    asked = run_example("nightly_etl", tmp_path, answer="")
    assert asked.returncode == 1
    _, *command = asked.stderr.rpartition("later: ")[2].split()
    holdfast = Path(sys.executable).with_name("holdfast")
    subprocess.run([holdfast, *command], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, timeout=60, check=True)
    assert run_example("nightly_etl", tmp_path, answer="").stdout.rstrip().endswith(ENDS["nightly_etl"])


def test_a_killed_session_leaves_an_invoice_for_each_order(processes, tmp_path):
    cut_off(processes, "sqlalchemy_orders", signal.SIGKILL)
    assert run_example("sqlalchemy_orders", tmp_path).stdout.endswith("2 orders, 2 invoices\n")
    assert run_example("sqlalchemy_orders", tmp_path).stdout.endswith("4 orders, 4 invoices\n")


def test_the_service_streams_orders_and_resumes_after_a_kill(processes, tmp_path):
    port = free_port()
    first = processes.start(path_of("fastapi_orders"), "--port", port)
    with Client(base_url=f"http://localhost:{port}", timeout=60) as client:
        wait_until(lambda: answers(client) or not first.alive, 60, "the service answers")
        order = {"item": "rope", "pieces": 4}
        made = client.post("/orders", json=order, headers={"Idempotency-Key": "one"}).json()
        again = client.post("/orders", json=order, headers={"Idempotency-Key": "one"}).json()
        other = client.post("/orders", json={"item": "lamp", "pieces": 1}, headers={"Idempotency-Key": "one"})
        wrong = client.post("/orders", json={"item": "", "pieces": 0})
        assert (again["run"], other.status_code, wrong.status_code) == (made["run"], 409, 422)
        assert client.get("/orders/00000000-0000-0000-0000-000000000000").status_code == 404
        assert client.get("/holdfast/").status_code == 401
        token = first.log.rpartition("token: ")[2].strip()
        assert client.get("/holdfast/", headers={"authorization": f"Bearer {token}"}).status_code == 200
        first.kill()

        processes.start(path_of("fastapi_orders"), "--port", port)
        wait_until(lambda: answers(client), 60, "the service answers")
        events = client.get(f"/orders/{made['run']}/events").text
        packed = [json.loads(line.removeprefix("data: "))["packed"] for line in events.split("\n") if "data" in line]
        assert packed == [1, 2, 3, 4]
        done = client.get(f"/orders/{made['run']}").json()
        assert (done["state"], len(done["receipt"]["boxes"])) == ("done", 4)


def test_the_research_agent_goes_on_after_a_kill_waits_for_its_budget_and_asks_before_it_publishes(processes, tmp_path):
    port = free_port()
    address = f"http://localhost:{port}"

    def start(client: Client) -> Process:
        process = processes.start(path_of("research_agent"), "--port", port, env={"BUDGET": "0.001"})
        wait_until(lambda: answers(client) or not process.alive, 60, "the service answers")
        return process

    async def read(reader: SocketReader, until: str) -> None:
        async with asyncio.timeout(60):
            following = asyncio.ensure_future(reader.follow(0))
            while until not in words(reader):
                await asyncio.sleep(0.02)
            following.cancel()

    def words(reader: SocketReader) -> str:
        pieces = (each["data"] for each in reader.chunks.values())
        return "".join(piece if isinstance(piece, str) else f"<{piece['tool']}>" for piece in pieces)

    with Client(base_url=address, timeout=60) as client:
        first = start(client)
        assert "EventSource" in client.get("/").text
        begun = client.post("/research", json={"text": "Why do ropes have knots?"}).json()
        path = f"/research/{begun['run']}"
        assert client.post(f"{path}/approvals/publish", json={"approved": True}).status_code == 409
        page = SocketReader.at(begun["stream"])
        asyncio.run(read(page, "Report: Three articles"))
        first.kill()

        second = start(client)
        wait_until(lambda: client.get(path).json()["waits_for_budget"], 60, "the agent waits for its budget")
        assert client.post(f"{path}/budget").status_code == 204
        wait_until(lambda: client.get(path).json()["approve"] == "publish", 60, "the agent asks")
        assert client.post(f"{path}/approvals/publish", json={"approved": True}).status_code == 204
        wait_until(lambda: client.get(path).json()["state"] == "done", 60, "the agent is done")

        asyncio.run(read(page, "is published."))
        assert page.resets >= 1, "the first half of the report was dropped"
        again = client.get(path).json()
        reloaded = SocketReader.at(again["stream"])
        asyncio.run(read(reloaded, "is published."))
        report = "Three articles are about ropes. Three articles are about knots. A knot holds a rope by friction."
        transcript = f"<search><search>Report: {report} <publish>I am done: Ropes and knots is published."
        assert (words(page), words(reloaded)) == (transcript, transcript)
        assert page.problems == reloaded.problems == []
        assert (again["question"], again["budget"]) == ("Why do ropes have knots?", "1.001")
        assert 0.001 < float(again["spent"]) < 0.01
        done = f"{first.log}{second.log}"
        assert [done.count(each) for each in ("[searched ropes]", "[searched knots]", "[published")] == [1, 1, 1]
        assert client.get(f"/research/{begun['run'][::-1]}").status_code in (404, 422)
        second.signal(signal.SIGINT)
        second.wait()
        assert "Traceback" not in second.log


def test_a_killed_approval_sends_one_mail_and_its_link_works_once(processes, tmp_path):
    port = free_port()
    first = processes.start(path_of("approval_by_link"), "--port", port)
    first.wait_for("Subject:", 60)
    first.kill()
    again = run_example("approval_by_link", tmp_path, "--port", str(port), "--approve")
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout == "Decision recorded\npaying 50 EUR back\norder 42: 50 EUR were paid back\n"
    assert run_example("approval_by_link", tmp_path, "--port", str(port)).stdout.count("\n") == 1


def test_a_killed_webhook_receiver_orders_each_film_once(processes, tmp_path):
    port = free_port()
    first = processes.start(path_of("webhook_receiver"), "--port", port)
    first.wait_for("broken: conversion ordered", 60)
    first.kill()
    again = run_example("webhook_receiver", tmp_path, "--port", str(port))
    assert (again.returncode, again.stderr) == (0, "")
    assert "broken: conversion ordered" not in again.stdout
    assert again.stdout.endswith("holiday: conversion ordered\nholiday: holiday.mp4, 90 s\n")


def answers(client: Client) -> bool:
    try:
        return client.get("/openapi.json").status_code == 200
    except TransportError:
        return False


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def test_a_killed_checkout_charges_once_and_undoes(processes, tmp_path):
    _, code = cut_off(processes, "checkout", signal.SIGKILL)
    assert code == -signal.SIGKILL
    again = run_example("checkout", tmp_path)
    assert again.stdout.rstrip().endswith(ENDS["checkout"])
    bank = [line.rpartition(" ")[2] for line in (tmp_path / "bank.txt").read_text().splitlines()]
    assert sorted(bank) == ["payment-1", "payment-3", "payment-3"]  # the second one of 3 is the refund


def test_a_killed_subscription_resumes_in_its_state(processes, tmp_path):
    process = processes.start(path_of("subscription"), env={"PYTHONUNBUFFERED": "1"})
    process.wait_for("Ada: month 1 paid", 60)
    process.kill()
    again = run_example("subscription", tmp_path)
    assert again.stdout.rstrip().endswith(ENDS["subscription"])
    assert "welcome" not in again.stdout


def test_a_killed_agent_does_not_repeat_tool_calls(processes, tmp_path):
    output, _ = cut_off(processes, "agent", signal.SIGKILL)
    assert output.count("[") == 3
    again = run_example("agent", tmp_path)
    assert again.stdout.rstrip().endswith(ENDS["agent"])
    assert "[" not in again.stdout
    assert "(again)" in again.stdout


def test_a_killed_import_writes_each_row_once(processes, tmp_path):
    cut_off(processes, "file_import", signal.SIGKILL)
    again = run_example("file_import", tmp_path)
    assert again.stdout.rstrip().endswith(ENDS["file_import"])
    with Holdfast(f"sqlite:///{tmp_path / 'import.db'}") as app, app.transaction() as connection:
        assert list(connection.execute("select count(*) from customers")) == [(19_980,)]
        assert list(connection.execute("select count(*), count(distinct number) from rejected")) == [(20, 20)]


def check_rate_per_host(folder: Path) -> None:
    with Holdfast(f"sqlite:///{folder / 'crawler.db'}") as app:
        starts = defaultdict(list)
        for info in app.runs(task="crawler.read_page", state="done"):
            page = app.get_run(info.id).result()
            starts[urlsplit(page["url"]).netloc].append(info.started_at)
    assert {host: len(times) for host, times in starts.items()} == {"rope.test": 6, "anchor.test": 6, "lamp.test": 4}
    for times in map(sorted, starts.values()):
        assert all(sixth - first >= timedelta(seconds=1) for first, sixth in zip(times, times[5:], strict=False))


def test_a_killed_etl_resumes_and_loads_once(processes, tmp_path):
    process = processes.start(path_of("nightly_etl"), env={"PYTHONUNBUFFERED": "1"})
    process.wait_for("extracting", 60)
    process.kill()
    assert run_example("nightly_etl", tmp_path).stdout.rstrip().endswith(ENDS["nightly_etl"])
    with Holdfast(f"sqlite:///{tmp_path / 'etl.db'}") as app, app.transaction() as connection:
        assert list(connection.execute("select count(*), count(distinct number) from sales")) == [(182, 182)]


def test_a_rejected_etl_is_not_loaded(tmp_path):
    outcome = run_example("nightly_etl", tmp_path, answer="n\n")
    assert "too many orders without a customer" in outcome.stdout
    assert "was not loaded" in outcome.stdout
    assert "temporary files" in outcome.stdout
    assert "loaded 182" not in outcome.stdout


def test_an_unanswered_etl_asks_again(tmp_path):
    unanswered = run_example("nightly_etl", tmp_path, answer="")
    assert (unanswered.returncode, "holdfast gate" in unanswered.stderr) == (1, True)
    again = run_example("nightly_etl", tmp_path)
    assert "extracting" not in again.stdout
    assert again.stdout.rstrip().endswith(ENDS["nightly_etl"])
