"""`holdfast demo`: real workers on real work, one of them killed before your eyes."""

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
    """Raises KeyboardInterrupt at the first signal, or after what must not be broken off."""

    def __init__(self) -> None:
        self._held = False
        self._came = False
        for number in SIGNALS:
            signal.signal(number, self._note)

    def _note(self, _number: int, _frame: FrameType | None) -> None:
        self.ignore()
        self._came = True
        if not self._held:
            raise KeyboardInterrupt

    def ignore(self) -> None:
        """From now on nothing interrupts us: we are about to end."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let a signal wait until the end of the block."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
        if self._came:
            raise KeyboardInterrupt


FEWEST_JOBS = 20
MOST_JOBS = 5000


@holdfast.command(takes=("debug",))
@click.option("--postgres", metavar="URL", help="On this PostgreSQL, in a schema of its own, instead of a SQLite file.")
@click.option(
    "--jobs", type=click.IntRange(FEWEST_JOBS, MOST_JOBS), default=500, show_default=True, help="How many jobs."
)
@click.option("--keep", is_flag=True, help="Keep the folder, and the schema, to look into them.")
def demo(postgres: str | None, jobs: int, keep: bool) -> int:
    """See workers at work, and what happens when one of them is killed.

    Takes about ten seconds, works in a temporary folder, and leaves nothing behind.

    \b
    Examples:
      holdfast demo
      holdfast demo --postgres postgresql://localhost/shop
      holdfast demo --keep
    """
    if postgres is not None and not postgres.startswith(("postgresql:", "postgres:")):
        raise click.BadParameter("write it as postgresql://user@host/database", param_hint="'--postgres'")
    interrupt = Interrupt()
    schema = f"holdfast_demo_{secrets.token_hex(4)}"
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    try:
        (folder / "invoices").mkdir()
        os.environ |= {"HOLDFAST_DEMO_FOLDER": str(folder), "HOLDFAST_DEMO_SCHEMA": schema}
        os.environ["HOLDFAST_URL"] = postgres or f"sqlite:///{folder / 'holdfast.db'}"
        return _play(folder, jobs, schema if postgres else None, keep, interrupt)
    except KeyboardInterrupt:
        what = f"kept: {folder}" if keep else "the folder is removed"
        click.echo(f"holdfast demo: stopped; nothing is left running, {what}", err=True)
        raise
    finally:
        interrupt.ignore()
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def _play(folder: Path, jobs: int, schema: str | None, keep: bool, interrupt: Interrupt) -> int:
    from holdfast.cli.demo import display
    from holdfast.cli.demo.app import app
    from holdfast.cli.demo.scenario import Scenario
    from holdfast.cli.demo.state import DemoState

    console = display.make_console()
    database = app.store.database.display_url
    scene = DemoState(jobs, database)
    try:
        with display.shown(console, scene) as draw:
            verdict = Scenario(folder, scene, draw, interrupt).perform()
        display.tell_verdict(console, verdict)
        if keep:
            look = f"holdfast runs --url {database}" + (f" --schema {schema}" if schema else "")
            display.tell_kept(console, str(folder), look)
        display.tell_next(console)
        return 0 if verdict.good else 1
    finally:
        interrupt.ignore()
        if schema and not keep and scene.events:
            _drop(app, schema)
        app.close()


def _drop(app: Holdfast, schema: str) -> None:
    try:
        app.store.database.connection("client").run(
            lambda line: line.execute_script(f'drop schema if exists "{schema}" cascade')
        )
    except HoldfastError as error:
        click.echo(f"holdfast demo: the schema {schema} couldn't be dropped: {error}", err=True)
