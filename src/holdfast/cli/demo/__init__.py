"""The `demo` command: real workers process jobs, and one of them is killed."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from holdfast.app import Holdfast
from holdfast.cli.root import holdfast
from holdfast.errors import HoldfastError

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """Raises KeyboardInterrupt at the first of SIGINT, SIGTERM and SIGHUP, or at the end of a protected block."""

    def __init__(self) -> None:
        self._is_deferred = False
        self._received = False
        for number in SIGNALS:
            signal.signal(number, self._handle)

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.ignore()
        self._received = True
        if not self._is_deferred:
            raise KeyboardInterrupt

    def ignore(self) -> None:
        """Ignore all further signals, during cleanup."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Defer a signal until the end of the block."""
        self._is_deferred = True
        try:
            yield
        finally:
            self._is_deferred = False
        if self._received:
            raise KeyboardInterrupt


MIN_JOBS = 20
MAX_JOBS = 5000


@holdfast.command(takes=("debug",))
@click.option("--postgres", metavar="URL", help="Use this PostgreSQL, in a separate schema, instead of a SQLite file.")
@click.option("--jobs", type=click.IntRange(MIN_JOBS, MAX_JOBS), default=500, show_default=True, help="Number of jobs.")
@click.option("--keep", is_flag=True, help="Keep the folder and the schema for inspection.")
def demo(postgres: str | None, jobs: int, keep: bool) -> int:
    """Run a demo: workers process jobs, and one of them is killed.

    Takes about ten seconds in a temporary folder, and leaves nothing behind.

    \b
    Examples:
      holdfast demo
      holdfast demo --postgres postgresql://localhost/shop
      holdfast demo --keep
    """
    if postgres is not None and not postgres.startswith(("postgresql", "postgres:")):
        raise click.BadParameter("use postgresql://user@host/database.", param_hint="'--postgres'")
    interrupt = Interrupt()
    schema = f"holdfast_demo_{secrets.token_hex(4)}"
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        (folder / "invoices").mkdir()
        os.environ |= {"HOLDFAST_DEMO_FOLDER": str(folder), "HOLDFAST_DEMO_SCHEMA": schema}
        os.environ["HOLDFAST_URL"] = postgres or f"sqlite:///{folder / 'holdfast.db'}"
        return _run_demo(folder, jobs, schema if postgres else None, keep, interrupt)
    except KeyboardInterrupt:
        what = f"{folder} is kept" if keep else "the folder is removed"
        click.echo(f"holdfast demo: stopped; no process is left running, {what}", err=True)
        raise
    finally:
        interrupt.ignore()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _run_demo(folder: Path, jobs: int, schema: str | None, keep: bool, interrupt: Interrupt) -> int:
    from holdfast.cli.demo import display
    from holdfast.cli.demo.app import app
    from holdfast.cli.demo.scenario import Scenario
    from holdfast.cli.demo.state import DemoState

    console = display.make_console()
    database = app.store.database.display_url
    state = DemoState(jobs, database)
    try:
        with display.show_live(console, state) as draw:
            result = Scenario(folder, state, draw, interrupt).run()
        display.print_result(console, result)
        if keep:
            look = f"holdfast runs --url {database}" + (f" --schema {schema}" if schema else "")
            display.print_kept(console, str(folder), look)
        display.print_next_steps(console)
        return 0 if result.passed else 1
    finally:
        interrupt.ignore()
        if schema and not keep and state.events:
            _drop(app, schema)
        app.close()


def _drop(app: Holdfast, schema: str) -> None:
    try:
        app.store.database.connection("client").run(
            lambda line: line.execute_script(f'drop schema if exists "{schema}" cascade')
        )
    except HoldfastError as error:
        click.echo(f"holdfast demo: the schema {schema} could not be dropped: {error}", err=True)
