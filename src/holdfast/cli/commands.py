"""The commands. Each does its work through the app; errors are one line that says what to do."""

from __future__ import annotations

import logging
import sys
from typing import Any

import click

from holdfast.cli.apps import load_app
from holdfast.errors import HoldfastError


class _Group(click.Group):
    """Turns our errors into one line; a traceback only with --debug."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except HoldfastError as error:
            if ctx.params.get("debug"):
                raise
            click.echo(f"holdfast: {error}", err=True)
            sys.exit(2)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--app", metavar="MODULE:APP", help="Where the app is, like shop.tasks:app.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
@click.version_option(package_name="holdfast")
@click.pass_context
def holdfast(ctx: click.Context, app: str | None, debug: bool) -> None:  # noqa: ARG001 - read by _Group
    """Runs functions that must finish."""
    ctx.obj = app


@holdfast.command()
@click.option("--app", "own_app", metavar="MODULE:APP", help="Where the app is, like shop.tasks:app.")
@click.option("--queues", metavar="A,B", help="Work only on these queues.  [default: all]")
@click.option("--concurrency", type=int, default=100, show_default=True, help="How many runs at once.")
@click.option(
    "--lease", type=float, default=60.0, show_default=True, help="Seconds until a dead worker's runs are taken over."
)
@click.option("--grace", type=float, default=30.0, show_default=True, help="Seconds that runs get to finish at a stop.")
@click.option("--verbose", "-v", is_flag=True, help="Log every run.")
@click.pass_obj
def worker(
    app: str | None,
    own_app: str | None,
    queues: str | None,
    concurrency: int,
    lease: float,
    grace: float,
    verbose: bool,
) -> None:
    """Work on the app's tasks until Ctrl-C or SIGTERM.

    The first signal stops claiming and lets what runs finish within the grace; a second one hands it back at once.

    \b
    Examples:
      holdfast worker --app shop.tasks:app
      holdfast worker --app shop.tasks:app --queues billing,mail --concurrency 20
    """
    logging.basicConfig(format="%(asctime)s %(levelname)-7s %(message)s", datefmt="%H:%M:%S", level=logging.WARNING)
    logging.getLogger("holdfast").setLevel(logging.DEBUG if verbose else logging.INFO)
    found = load_app(own_app or app)
    names = None if queues is None else [name.strip() for name in queues.split(",") if name.strip()]
    found.worker(queues=names, concurrency=concurrency, lease=lease, grace=grace).run()
