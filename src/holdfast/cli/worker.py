"""`holdfast worker`: works until it is told to stop, in this process or in several under a supervisor."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import TYPE_CHECKING

import click

from holdfast.cli.options import DURATION
from holdfast.cli.root import SharedOptions, holdfast, pass_shared

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.telemetry.log_format import LogFormat

MOST_PROCESSES = 1000
LAST_PORT = 65535
COLOURS = (36, 32, 35, 34, 96, 92, 95, 94)


@holdfast.command(takes=("app", "url", "debug"))
@click.option("--queues", metavar="A,B", help="Work only on these queues.  [default: all]")
@click.option("--concurrency", type=int, default=100, show_default=True, help="How many runs at once, in each process.")
@click.option(
    "--processes",
    type=click.IntRange(1, MOST_PROCESSES),
    help="Supervise so many worker processes; one that dies is started again.  [default: work in this one]",
)
@click.option(
    "--lease", type=DURATION, default="60s", show_default=True, help="How soon a dead worker's runs are taken over."
)
@click.option("--grace", type=DURATION, default="30s", show_default=True, help="How long runs may go on at a stop.")
@click.option("--fail-fast", is_flag=True, help="Exit if the database can't be reached at the start.  [default: wait]")
@click.option("--verbose", "-v", is_flag=True, help="Log every run.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Lines for people, or JSON with run, task, attempt and worker as fields.",
)
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    help="Show metrics for Prometheus there; of several processes each has the next port.  [default HOST: 127.0.0.1]",
)
@click.option("--supervised", type=int, hidden=True, help="The open socket to the supervisor.")
@pass_shared
def worker(
    shared: SharedOptions,
    queues: str | None,
    concurrency: int,
    processes: int | None,
    lease: float,
    grace: float,
    fail_fast: bool,
    verbose: bool,
    log_format: LogFormat,
    metrics: str | None,
    supervised: int | None,
) -> int:
    """Work on the app's tasks until Ctrl-C or SIGTERM.

    The first signal stops claiming and lets what runs finish within the grace; a second one hands it back at once.

    \b
    Examples:
      holdfast worker --app shop.tasks:app
      holdfast worker --app shop.tasks:app --queues billing,mail --concurrency 20
      holdfast worker --app shop.tasks:app --processes 4
      holdfast worker --app shop.tasks:app --log-format json --metrics 9464
    """
    shown_at = None if metrics is None else _address(metrics, processes or 1)
    if processes is not None:
        options = [f"--concurrency={concurrency}", f"--lease={lease:f}", f"--grace={grace:f}"]
        options += [f"--log-format={log_format}"]
        options += [f"--queues={queues}"] * (queues is not None) + ["--verbose"] * verbose
        options += ["--fail-fast"] * fail_fast
        command = [sys.executable, "-m", "holdfast.cli", *_said(shared), "worker", *options]

        def command_of(number: int) -> list[str]:
            return command if shown_at is None else [*command, f"--metrics={shown_at[0]}:{shown_at[1] + number - 1}"]

        return _supervise(command_of, processes, grace, verbose, log_format)

    from holdfast.cli.connect import load_worker_app
    from holdfast.engine.processes.supervisor_link import SupervisorLink
    from holdfast.telemetry.log_format import configure_console_log

    configure_console_log(verbose, style=log_format)
    names = None if queues is None else [name.strip() for name in queues.split(",") if name.strip()]
    link = None if supervised is None else SupervisorLink(supervised)  # first: the supervisor may exit during imports
    app = load_worker_app(shared)
    if shown_at is not None:
        _show_metrics(app, *shown_at)
    ours = app.worker(queues=names, concurrency=concurrency, lease=lease, grace=grace, wait_for_database=not fail_fast)
    if link is not None:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)  # what tasks print is shown when it is printed
        app.on_start(link.ready)
        link.connect(ours.stop, ours.session_ended)
        ours.on_session(link.report_session)
        ours.restart_if_unhealthy()
    ours.run()
    return ours.exit_code


def _said(shared: SharedOptions) -> list[str]:
    """The shared options, for a process that shall work as this one was told to."""
    named = {"--app": shared.app, "--url": shared.url}
    return [f"{name}={value}" for name, value in named.items() if value is not None] + ["--debug"] * shared.debug


def _address(shared: str, processes: int) -> tuple[str, int]:
    """Where to show metrics."""
    host, _, port = shared.rpartition(":")
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= LAST_PORT - processes + 1):
        raise click.BadParameter(f"{shared!r} has no port that can be listened on.", param_hint="--metrics")
    return host.strip("[]") or "127.0.0.1", int(port)


def _show_metrics(app: Holdfast, host: str, port: int) -> None:
    app.telemetry.add("prometheus")
    from holdfast.telemetry.prometheus import serve_metrics  # which needs what was just looked for

    serve_metrics(host, port)


def _supervise(
    command: Callable[[int], list[str]], processes: int, grace: float, verbose: bool, log_format: LogFormat
) -> int:
    from holdfast.engine.processes.supervisor import Supervisor
    from holdfast.telemetry.log_format import configure_console_log, use_color

    width = len(f"worker {processes}")
    colours = use_color(sys.stderr)
    if colours:
        os.environ["FORCE_COLOR"] = "1"  # for the children, whose output is a pipe to us
    configure_console_log(verbose, f"{'holdfast':<{width}} | ", log_format)
    show = show_as_they_are if log_format == "json" else show_lines(width, colours)
    return Supervisor(command, processes, grace, show).run()


def show_as_they_are(_number: int, lines: list[bytes]) -> None:
    """Writes whole lines: as JSON they say themselves whose they are."""
    _write(b"".join(line + b"\n" for line in lines))


def show_lines(width: int, colours: bool) -> Callable[[int, list[bytes]], None]:
    """Writes whole lines with the number of their worker in front, each in one piece."""

    def show(number: int, lines: list[bytes]) -> None:
        name = f"worker {number:>{width - len('worker ')}} | ".encode()
        if colours:
            name = b"\x1b[%dm%s\x1b[0m" % (COLOURS[(number - 1) % len(COLOURS)], name)
        text = b"".join(name + line.rstrip(b"\r") + b"\n" for line in lines)
        _write(text)

    return show


def _write(text: bytes) -> None:
    try:
        sys.stderr.buffer.write(text)
        sys.stderr.buffer.flush()
    except OSError:
        pass  # whoever read our log is gone; the work goes on
