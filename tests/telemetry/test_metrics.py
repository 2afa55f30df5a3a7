"""Metrics of workers and applications, in OpenTelemetry and Prometheus."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
import urllib.error
import urllib.request
from functools import cache
from pathlib import Path

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import REGISTRY

from holdfast import Context, Holdfast, Retry
from holdfast.cli.commands import holdfast
from holdfast.telemetry.metrics import METRICS, SeriesNames, bound_samples
from tests.support.durable import drain
from tests.support.processes import Processes
from tests.support.wait_until import wait_until

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


def double(number: int) -> int:
    return number * 2


@cache
def reader() -> InMemoryMetricReader:
    """A process can set its provider only once."""
    kept = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([kept]))
    return kept


class Counted:
    """Measurements of one task since creation, by either library."""

    def __init__(self, kind: str, task: str) -> None:
        self._read = self._prometheus if kind == "prometheus" else self._otel
        self._task = task
        self._before: dict[str, float] = {}
        self._before = self()

    def __call__(self) -> dict[str, float]:
        return {name: value - self._before.get(name, 0) for name, value in self._read().items()}

    def _prometheus(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for family in REGISTRY.collect():
            for sample in family.samples:
                name = sample.name.removesuffix("_total")
                if name.startswith("holdfast_") and not name.endswith(("_created", "_bucket", "_sum")):
                    self._add(found, name.replace("_seconds", "").replace("_", "."), sample.labels, sample.value)
        return found

    def _otel(self) -> dict[str, float]:
        found: dict[str, float] = {}
        data = reader().get_metrics_data()
        for resource in data.resource_metrics if data else []:
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                for point in metric.data.data_points:
                    name = metric.name if hasattr(point, "value") else f"{metric.name}.count"
                    self._add(found, name, point.attributes, getattr(point, "value", getattr(point, "count", 0)))
        return found

    def _add(self, found: dict[str, float], name: str, labels: dict[str, str], value: float) -> None:
        plain = {label.removeprefix("holdfast."): text for label, text in labels.items()}
        if plain.get("task", self._task) == self._task:
            shown = [text for label in ("queue", "outcome") if (text := plain.get(label))]
            found[" ".join([name, *shown])] = value


@pytest.mark.parametrize("kind", ["otel", "prometheus"])
def test_a_worker_counts_claims_attempts_steps_and_commits(kind, database_url):
    if kind == "otel":
        reader()
    task = f"counted with {kind} on {database_url}"
    with Holdfast(database_url, telemetry=kind) as app:

        @app.task(name=task, retry=Retry(max_attempts=2, delay=0), queue="mail")
        async def counted(ctx: Context, well: bool) -> None:
            await ctx.step(double, 1)
            if not well:
                raise ValueError

        since = Counted(kind, task)
        counted.enqueue_many([(True,), (False,)])
        drain(app)
        got = since()
    expected = {
        "holdfast.runs.enqueued mail": 2, "holdfast.runs.claimed mail": 3,
        "holdfast.attempts mail done": 1, "holdfast.attempts mail retrying": 1, "holdfast.attempts mail failed": 1,
        "holdfast.attempt.duration.count mail": 3, "holdfast.steps mail done": 2,
        "holdfast.step.duration.count mail": 2,
    }  # fmt: skip
    assert {name: got[name] for name in expected} == expected
    assert got["holdfast.run.wait.count mail"] in (2, 3), "a run that is ready again already is left out"
    assert got["holdfast.claim.duration.count"] >= 2
    assert got["holdfast.commit.duration.count"] == got["holdfast.commit.size.count"] >= 2


def sample(name, **labels):
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_the_last_attempt_and_step_that_time_out_have_that_outcome(database_url):
    task = f"slow on {database_url}"
    with Holdfast(database_url, telemetry="prometheus") as app:

        @app.task(name=task, retry=Retry(max_attempts=2, delay=0), timeout=0.01)
        async def slow() -> None:
            await asyncio.sleep(60)

        @app.task(name=f"{task} step", retry=Retry(max_attempts=1))
        async def slow_step(ctx: Context) -> None:
            await ctx.options(timeout=0.01).step(asyncio.sleep, 60)

        slow.enqueue()
        slow_step.enqueue()
        drain(app)
    assert sample("holdfast_attempts_total", task=task, queue="default", outcome="timed_out") == 2
    assert sample("holdfast_steps_total", task=f"{task} step", queue="default", outcome="timed_out") == 1


def test_waits_count_from_when_a_run_became_ready(make_app, clock):
    """Not from its creation: it was delayed, and retried after an hour."""
    app = make_app(telemetry="prometheus", clock=clock)
    task = f"late on {app.url}"

    @app.task(name=task, retry=Retry(max_attempts=2, delay=3600, max_delay=3600, jitter=0))
    async def late() -> None:
        raise ValueError

    def waited():
        return sample("holdfast_run_wait_seconds_sum", task=task, queue="default")

    late.options(delay=1000).enqueue()
    clock.forward(1030)
    drain(app)
    first = waited()
    assert 29 < first < 31
    clock.forward(3600)
    drain(app)
    assert 0 <= waited() - first < 31
    assert sample("holdfast_run_wait_seconds_count", task=task, queue="default") == 2


def test_the_oldest_ready_run_of_a_queue_is_found_in_a_backlog(make_app, clock):
    app = make_app(telemetry="prometheus", clock=clock)
    app.queue("fair", fair=True)
    job = app.remote("job")
    for queue in ("mail", "fair"):
        job.options(queue=queue, priority=-5).enqueue()
        clock.forward(100)
        job.options(queue=queue).enqueue_many([()] * 20)
        job.options(queue=queue, delay=50).enqueue()
    clock.forward(20)
    with app.worker(queues=["none"]):
        assert sample("holdfast_queue_oldest_ready_seconds", queue="mail") == 220
        assert sample("holdfast_queue_oldest_ready_seconds", queue="fair") == 120
    assert REGISTRY.get_sample_value("holdfast_queue_oldest_ready_seconds", {"queue": "mail"}) is None


def test_names_beyond_the_limit_are_counted_as_other(make_app, monkeypatch):
    app = make_app(telemetry="prometheus")
    monkeypatch.setattr("holdfast.client.run_creator.NAMES", SeriesNames())
    monkeypatch.setattr("holdfast.telemetry.metrics.MAX_NAMES", 3)
    before = sample("holdfast_runs_enqueued_total", task="other", queue="other")
    for number in range(10):
        app.remote(f"invented on {app.url}", queue=f"q{number}").enqueue()
    assert sample("holdfast_runs_enqueued_total", task="other", queue="other") == before + 7
    assert sample("holdfast_runs_enqueued_total", task=f"invented on {app.url}", queue="q2") == 1


def test_gauges_keep_the_largest_names(monkeypatch):
    monkeypatch.setattr("holdfast.telemetry.metrics.MAX_NAMES", 2)
    samples = [(("a", "ready"), 1.0), (("b", "ready"), 5.0), (("c", "ready"), 2.0), (("c", "running"), 2.0)]
    bounded = {("b", "ready"): 5.0, ("c", "ready"): 2.0, ("c", "running"): 2.0, ("other", "ready"): 1.0}
    assert bound_samples(samples, sum) == bounded
    assert bound_samples([(("a",), 3.0), (("b",), 1.0), (("c",), 2.0), (("d",), 0.5)], max)["other",] == 1.0


def test_gauges_are_the_sum_over_running_workers(make_app):
    app = make_app(telemetry="prometheus")
    before = REGISTRY.get_sample_value("holdfast_slots")
    with app.worker(concurrency=7), app.worker(concurrency=5):
        assert REGISTRY.get_sample_value("holdfast_slots") == before + 12
        assert REGISTRY.get_sample_value("holdfast_slots_busy") == 0
        assert REGISTRY.get_sample_value("holdfast_backlog") == 0
    assert REGISTRY.get_sample_value("holdfast_slots") == before


def test_every_metric_is_in_the_docs():
    page = (DOCS / "telemetry.md").read_text()
    for metric in METRICS.values():
        shown = f"{metric.prometheus}_total" if metric.kind == "counter" else metric.prometheus
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
        assert f"| `{metric.name}` | `{shown}` | {metric.kind} | {labels} | {metric.help} |" in page


APP = """
from holdfast import Holdfast

app = Holdfast({url!r})

@app.task(name="job")
async def job() -> None: ...
"""


@pytest.fixture
def worker(tmp_path, sqlite_url):
    """Start `holdfast worker` with these options on an app with one task."""
    (tmp_path / "shop_app.py").write_text(APP.format(url=sqlite_url))
    started = Processes(tmp_path)

    def start(*options):
        command = ["-m", "holdfast.cli", "worker", "--app", "shop_app:app", *options]
        return started.start(*command, cwd=tmp_path, env={"PYTHONPATH": ":".join(sys.path)})

    yield start
    started.close()


def free_ports():
    """Return the first of two adjacent free ports."""
    for first in range(20000 + os.getpid() * 2 % 20000, 60000, 2):
        with socket.socket() as one, socket.socket() as two:
            try:
                one.bind(("127.0.0.1", first))
                two.bind(("127.0.0.1", first + 1))
            except OSError:
                continue
            return first
    raise AssertionError("no port is free")


def got(port, path):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def scraped(port):
    return urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60).read().decode()


@pytest.mark.parametrize("processes", [1, 2])
def test_each_worker_process_serves_probes_and_metrics_on_its_own_port(worker, processes):
    port = free_ports()
    more = ["--processes", str(processes)] if processes > 1 else []
    process = worker("--health", str(port), "--concurrency", "9", *more)
    for _ in range(processes):
        process.wait_for("worker started", timeout=60)
    for number in range(processes):
        shown = scraped_when_up(process, port + number)
        assert re.search(r"^holdfast_slots 9\.0$", shown, re.MULTILINE)
        assert got(port + number, "/livez") == (200, "event_loop ok\nthreads ok\nlease ok\n")
        wait_until(lambda number=number: got(port + number, "/readyz")[0] == 200)
    ports = [str(port + number) for number in range(processes)]
    assert holdfast.main(["health", *ports, "--ready"], standalone_mode=False) == 0
    process.signal(signal.SIGTERM)
    assert process.wait(60) == 0


def scraped_when_up(process, port):
    found = []

    def looked():
        try:
            found.append(scraped(port))
        except OSError:
            return False
        return "holdfast_slots 9.0" in found[-1]

    wait_until(looked, 60, lambda: f"metrics at {port}; its log:\n{process.log}")
    return found[-1]


@pytest.mark.parametrize("given", ["none", "0", "65536", "x:y", "127.0.0.1:"])
def test_an_invalid_health_port_is_rejected(worker, given):
    process = worker("--health", given)
    assert process.wait(60) == 2
    assert "--health" in process.log


def test_a_health_port_in_use_is_reported(worker):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = worker("--health", str(port))
        assert process.wait(60) == 2
    assert f"cannot serve health at 127.0.0.1:{port}" in process.log
