"""`holdfast worker`: works until it is told to stop, in this process or in several under a supervisor."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from io import TextIOWrapper

import click

from holdfast.cli.root import Given, holdfast, pass_given

MOST_PROCESSES = 1000
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
    "--lease", type=float, default=60.0, show_default=True, help="Seconds until a dead worker's runs are taken over."
)
@click.option("--grace", type=float, default=30.0, show_default=True, help="Seconds that runs get to finish at a stop.")
@click.option("--verbose", "-v", is_flag=True, help="Log every run.")
@click.option("--supervised", type=int, hidden=True, help="The open socket to the supervisor.")
@pass_given
def worker(
    given: Given,
    queues: str | None,
    concurrency: int,
    processes: int | None,
    lease: float,
    grace: float,
    verbose: bool,
    supervised: int | None,
) -> int:
    """Work on the app's tasks until Ctrl-C or SIGTERM.

    The first signal stops claiming and lets what runs finish within the grace; a second one hands it back at once.

    \b
    Examples:
      holdfast worker --app shop.tasks:app
      holdfast worker --app shop.tasks:app --queues billing,mail --concurrency 20
      holdfast worker --app shop.tasks:app --processes 4
    """
    if processes is not None:
        options = [f"--concurrency={concurrency}", f"--lease={lease}", f"--grace={grace}"]
        options += [f"--queues={queues}"] * (queues is not None) + ["--verbose"] * verbose
        return _supervise([*_said(given), "worker", *options], processes, grace, verbose)

    from holdfast.cli.connect import app_of
    from holdfast.engine.leash import Leash
    from holdfast.telemetry.console import show_log

    show_log(verbose)
    names = None if queues is None else [name.strip() for name in queues.split(",") if name.strip()]
    leash = None if supervised is None else Leash(supervised)  # first: the supervisor may end while we import
    app = app_of(given)
    ours = app.worker(queues=names, concurrency=concurrency, lease=lease, grace=grace)
    if leash is not None:
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)  # what tasks print is shown when it is printed
        app.on_start(leash.ready)
        leash.hold(ours.stop)
    ours.run()
    return 0


def _said(given: Given) -> list[str]:
    """The shared options, for a process that shall work as this one was told to."""
    named = {"--app": given.app, "--url": given.url}
    return [f"{name}={value}" for name, value in named.items() if value is not None] + ["--debug"] * given.debug


def _supervise(arguments: list[str], processes: int, grace: float, verbose: bool) -> int:
    from holdfast.engine.supervisor import Supervisor
    from holdfast.telemetry.console import coloured, show_log

    width = len(f"worker {processes}")
    colours = coloured(sys.stderr)
    if colours:
        os.environ["FORCE_COLOR"] = "1"  # for the children, whose output is a pipe to us
    show_log(verbose, f"{'holdfast':<{width}} | ")
    command = [sys.executable, "-m", "holdfast.cli", *arguments]
    return Supervisor(command, processes, grace, show_lines(width, colours)).run()


def show_lines(width: int, colours: bool) -> Callable[[int, list[bytes]], None]:
    """Writes whole lines with the number of their worker in front, each in one piece."""

    def show(number: int, lines: list[bytes]) -> None:
        name = f"worker {number:>{width - len('worker ')}} | ".encode()
        if colours:
            name = b"\x1b[%dm%s\x1b[0m" % (COLOURS[(number - 1) % len(COLOURS)], name)
        text = b"".join(name + line.rstrip(b"\r") + b"\n" for line in lines)
        try:
            sys.stderr.buffer.write(text)
            sys.stderr.buffer.flush()
        except OSError:
            pass  # whoever read our log is gone; the work goes on

    return show
