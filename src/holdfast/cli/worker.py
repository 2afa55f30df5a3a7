"""The `worker` command: run a worker in this process, or several processes under a supervisor."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import DURATION
from holdfast.cli.root import SharedOptions, holdfast, pass_shared
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.telemetry.log_format import LogFormat
    from holdfast.telemetry.probe_server import Endpoint

MAX_PROCESSES = 1000
MAX_PORT = 65535
COLORS = (36, 32, 35, 34, 96, 92, 95, 94)


@holdfast.command(takes=("app", "url", "debug"))
@click.option(
    "--queues",
    metavar="A,B=5",
    help="Serve only these queues; with a number, a queue has that many slots of its own.  [default: all]",
)
@click.option(
    "--concurrency",
    type=int,
    help="Concurrent runs per process, of queues without slots of their own.  [default: 100]",
)
@click.option(
    "--label",
    "labels",
    metavar="NAME=VALUE",
    multiple=True,
    help="A label of this worker, for tasks that require it; repeatable.",
)
@click.option(
    "--threads", type=int, default=40, show_default=True, help="How many of them may be `def` tasks, which use threads."
)
@click.option(
    "--processes",
    type=click.IntRange(1, MAX_PROCESSES),
    help="Number of supervised worker processes; dead ones are restarted.  [default: run in this process]",
)
@click.option(
    "--lease",
    type=DURATION,
    default="60s",
    show_default=True,
    help="Lease: how soon the runs of a dead worker are recovered.",
)
@click.option(
    "--grace",
    type=DURATION,
    default="25s",
    show_default=True,
    help="How long running runs may finish after a stop signal.",
)
@click.option(
    "--max-resident",
    type=click.IntRange(0),
    default=1000,
    show_default=True,
    help="How many suspended async functions stay in memory, where they resume without a replay.",
)
@click.option("--fail-fast", is_flag=True, help="Exit if the database is unavailable at the start.  [default: wait]")
@click.option("--verbose", "-v", is_flag=True, help="Log every run.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Plain text, or JSON with run, task, attempt and worker fields.",
)
@click.option(
    "--health",
    metavar="[HOST:]PORT",
    help="Serve /livez, /readyz and /metrics; each process uses the next port.  [default HOST: 127.0.0.1]",
)
@click.option("--reload", is_flag=True, help="Restart when a .py file below the current directory changes.")
@click.option("--supervised", type=int, hidden=True, help="File descriptor of the socket to the supervisor.")
@pass_shared
def worker(
    shared: SharedOptions,
    queues: str | None,
    concurrency: int | None,
    labels: tuple[str, ...],
    threads: int,
    processes: int | None,
    lease: float,
    grace: float,
    max_resident: int,
    fail_fast: bool,
    verbose: bool,
    log_format: LogFormat,
    health: str | None,
    reload: bool,
    supervised: int | None,
) -> int:
    """Run the app's tasks until Ctrl-C or SIGTERM.

    The first signal stops claiming and lets running runs finish within the grace period; a second one releases them at
    once.

    \b
    Examples:
      holdfast worker --app shop.tasks:app
      holdfast worker --app shop.tasks:app --queues billing,mail --concurrency 20
      holdfast worker --app shop.tasks:app --queues billing=5,mail=20
      holdfast worker --app shop.tasks:app --label gpu=a100 --label region=eu
      holdfast worker --app shop.tasks:app --processes 4
      holdfast worker --app shop.tasks:app --log-format json --health 8080
      holdfast worker --app shop.tasks:app --reload
    """
    health_at = None if health is None else parse_address(health, processes or 1)
    served, own_labels = parse_queues(queues), parse_labels(labels)
    options = [f"--concurrency={concurrency}"] * (concurrency is not None) + [f"--label={label}" for label in labels]
    options += [f"--threads={threads}", f"--lease={lease:f}", f"--grace={grace:f}"]
    options += [f"--max-resident={max_resident}", f"--log-format={log_format}"]
    options += [f"--queues={queues}"] * (queues is not None) + ["--verbose"] * verbose
    options += ["--fail-fast"] * fail_fast
    command = [sys.executable, "-m", "holdfast.cli", *_shared_arguments(shared), "worker", *options]
    if reload:
        from holdfast.cli.reload import ReloadingWorker

        more = [f"--processes={processes}"] * (processes is not None) + [f"--health={health}"] * (health is not None)
        return ReloadingWorker([*command, *more], Path.cwd()).run()
    if processes is not None:

        def command_of(number: int) -> list[str]:
            if health_at is None:
                return command
            return [*command, f"--health={health_at[0]}:{health_at[1] + number - 1}"]

        return _supervise(command_of, processes, grace, verbose, log_format)

    from holdfast.cli.connect import load_worker_app
    from holdfast.engine.processes.supervisor_link import SupervisorLink
    from holdfast.telemetry.log_format import configure_console_log

    configure_console_log(verbose, style=log_format)
    link = None if supervised is None else SupervisorLink(supervised)  # first: the supervisor may exit during imports
    app = load_worker_app(shared)
    endpoints = None if health_at is None else metrics_endpoint(app)
    worker = app.worker(
        queues=served, concurrency=concurrency, threads=threads, lease=lease, grace=grace,
        wait_for_database=not fail_fast, max_resident=max_resident, labels=own_labels,
    )  # fmt: skip
    if endpoints is not None and health_at is not None:
        from holdfast.telemetry.probe_server import ProbeServer, probe_answer

        endpoints["/livez"] = lambda _: probe_answer(worker.health.live().checks)
        endpoints["/readyz"] = lambda _: probe_answer(worker.health.ready().checks)
        ProbeServer(*health_at, endpoints).start()
    if link is not None:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)  # show the output of tasks at once
        app.on_start(link.ready)
        link.connect(worker.stop, worker.session_ended)
        worker.on_session(link.report_session)
        worker.on_progress(link.report_alive)
        worker.restart_if_unhealthy()
    worker.run()
    return worker.exit_code


def parse_queues(text: str | None) -> list[str] | dict[str, int | None] | None:
    """Parse the value of --queues: names, of which those with a number have slots of their own."""
    if text is None:
        return None
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not any("=" in name for name in names):
        return names
    slots: dict[str, int | None] = {}
    for name in names:
        queue, equals, number = (part.strip() for part in name.partition("="))
        if queue in slots:
            raise click.BadParameter(f"queue {queue} is named twice.", param_hint="--queues")
        if equals and not (number.isascii() and number.isdigit()):
            raise click.BadParameter(f"{name!r} has no number of slots, such as {queue}=20.", param_hint="--queues")
        slots[queue] = int(number) if equals else None
    return slots


def parse_labels(texts: tuple[str, ...]) -> dict[str, str]:
    """Parse the values of --label."""
    labels: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise click.BadParameter(f"{text!r} is not NAME=VALUE, such as gpu=a100.", param_hint="--label")
        if name in labels:
            raise click.BadParameter(f"{name} is given twice.", param_hint="--label")
        labels[name] = value
    return labels


def _shared_arguments(shared: SharedOptions) -> list[str]:
    """Return the shared options as arguments for a child process."""
    named = {"--app": shared.app, "--url": shared.url}
    return [f"{name}={value}" for name, value in named.items() if value is not None] + ["--debug"] * shared.debug


def parse_address(text: str, processes: int = 1, hint: str = "--health") -> tuple[str, int]:
    """Parse the address of the first health server; each process has one, at the next port."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= MAX_PORT - processes + 1):
        raise click.BadParameter(f"{text!r} has no valid port.", param_hint=hint)
    return host.strip("[]") or "127.0.0.1", int(port)


def metrics_endpoint(app: Holdfast) -> dict[str, Endpoint]:
    """Turn on Prometheus metrics and return the endpoint that serves them; it says what is missing otherwise."""
    from holdfast.telemetry.probe_server import ProbeAnswer

    try:
        app.telemetry.add("prometheus")
    except ConfigError as error:
        missing = ProbeAnswer(404, f"{error}\n".encode())
        return {"/metrics": lambda _: missing}
    from holdfast.telemetry.prometheus import exposition

    return {"/metrics": lambda accept: ProbeAnswer(200, *exposition(accept))}


def _supervise(
    command: Callable[[int], list[str]], processes: int, grace: float, verbose: bool, log_format: LogFormat
) -> int:
    from holdfast.engine.processes.supervisor import Supervisor
    from holdfast.telemetry.log_format import configure_console_log, use_color

    width = len(f"worker {processes}")
    colors = use_color(sys.stderr)
    if colors:
        os.environ["FORCE_COLOR"] = "1"  # the children's output is a pipe
    configure_console_log(verbose, f"{'holdfast':<{width}} | ", log_format)
    show = write_plain if log_format == "json" else prefixed_writer(width, colors)
    return Supervisor(command, processes, grace, show).run()


def write_plain(_number: int, lines: list[bytes]) -> None:
    """Write lines as they are: JSON lines name their worker."""
    _write(b"".join(line + b"\n" for line in lines))


def prefixed_writer(width: int, colors: bool) -> Callable[[int, list[bytes]], None]:
    """Return a function that writes lines with the number of their worker in front."""

    def show(number: int, lines: list[bytes]) -> None:
        name = f"worker {number:>{width - len('worker ')}} | ".encode()
        if colors:
            name = b"\x1b[%dm%s\x1b[0m" % (COLORS[(number - 1) % len(COLORS)], name)
        text = b"".join(name + line.rstrip(b"\r") + b"\n" for line in lines)
        _write(text)

    return show


def _write(text: bytes) -> None:
    try:
        sys.stderr.buffer.write(text)
        sys.stderr.buffer.flush()
    except OSError:
        pass  # the reader of the log is gone; the workers continue
