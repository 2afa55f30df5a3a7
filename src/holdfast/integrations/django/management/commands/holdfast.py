"""`manage.py holdfast …`: the command line, with the app of the settings."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

import click
from django.core.management.base import BaseCommand, CommandError

from holdfast.cli.commands import holdfast
from holdfast.cli.root import describe
from holdfast.errors import HoldfastError
from holdfast.integrations.django.conf import TARGET


class Command(BaseCommand):  # type: ignore[misc]  # it is seen as Any here
    """Hands on what it is given."""

    help = "Holdfast's command line with this project's app: worker, runs, show, dashboard, and more."
    requires_system_checks: Sequence[str] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """All that stands after `holdfast` is for it, but for what `manage.py` itself has understood already."""
        djangos = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        djangos.add_argument("--settings")
        djangos.add_argument("--pythonpath")
        _name_the_app()
        holdfast.main(djangos.parse_known_args(argv[2:])[1])

    def print_help(self, *_: Any) -> None:
        holdfast.main(["--help"])

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("args", nargs=argparse.REMAINDER)

    def handle(self, *args: str, **_: Any) -> None:
        """For `call_command("holdfast", "prune")`: errors are raised, and the process goes on."""
        _name_the_app()
        try:
            code = holdfast.main(list(args), standalone_mode=False)
        except (HoldfastError, click.ClickException) as error:
            line, code = describe(error)
            raise CommandError(line, returncode=code) from error
        if code:
            raise CommandError(f"holdfast {' '.join(args)} ended with exit code {code}", returncode=code)


def _name_the_app() -> None:
    """Also for the processes that a worker starts."""
    os.environ["HOLDFAST_APP"] = TARGET
