"""`holdfast bench`: hands over to the measurements, which stand above the command line and are found by their name."""

from __future__ import annotations

import importlib

import click

from holdfast.cli.root import holdfast

MEASUREMENTS = "holdfast.bench.command"


@holdfast.command(takes=(), add_help_option=False, context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def bench(arguments: tuple[str, ...]) -> int:
    """Measure Holdfast on this machine."""
    return int(importlib.import_module(MEASUREMENTS).main(list(arguments), "holdfast bench"))
