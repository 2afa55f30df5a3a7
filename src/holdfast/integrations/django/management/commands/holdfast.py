"""`manage.py holdfast …`: the CLI with the app of the settings."""

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


class Command(BaseCommand):  # type: ignore[misc]  # Django is untyped here
    """Passes its arguments on to the CLI."""

    help = "The Holdfast CLI with this project's app: worker, runs, show, dashboard and more."
    requires_system_checks: Sequence[str] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Pass on everything after `holdfast`, except the options that `manage.py` has processed."""
        django_options = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        django_options.add_argument("--settings")
        django_options.add_argument("--pythonpath")
        _set_app()
        holdfast.main(django_options.parse_known_args(argv[2:])[1])

    def print_help(self, *_: Any) -> None:
        holdfast.main(["--help"])

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("args", nargs=argparse.REMAINDER)

    def handle(self, *args: str, **_: Any) -> None:
        """Run `call_command("holdfast", "prune")`: raise errors instead of exiting."""
        _set_app()
        try:
            code = holdfast.main(list(args), standalone_mode=False)
        except (HoldfastError, click.ClickException) as error:
            line, code = describe(error)
            raise CommandError(line, returncode=code) from error
        if code:
            raise CommandError(f"holdfast {' '.join(args)} ended with exit code {code}", returncode=code)


def _set_app() -> None:
    """Set the app in the environment, for the child processes of a worker too."""
    os.environ["HOLDFAST_APP"] = TARGET
