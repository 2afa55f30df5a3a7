"""`manage.py holdfast …`: the CLI with the app of the settings."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import click
from django.core.management.base import BaseCommand, CommandError, OutputWrapper

from holdfast.cli.commands import holdfast
from holdfast.cli.root import SharedOptions, describe
from holdfast.errors import HoldfastError
from holdfast.integrations.django.conf import TARGET, the_app

VERBOSITIES = ("0", "1", "2", "3")


class Command(BaseCommand):  # type: ignore[misc]  # Django is untyped here
    """Passes its arguments on to the CLI."""

    help = "The Holdfast CLI with this project's app: worker, runs, show, dashboard and more."
    requires_system_checks: Sequence[str] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Pass on everything after `holdfast`, except the options that every Django command has."""
        options, words = _split(argv[2:])
        shared = _prepare(options, words)
        paths = [str(Path(argv[0]).resolve().parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # for processes of a worker, which don't run manage.py
        holdfast.main(words, obj=shared)

    def print_help(self, *_: Any) -> None:
        holdfast.main(["--help"])

    def create_parser(self, *args: Any, **kwargs: Any) -> Any:
        """Return a parser that takes all words that it doesn't know as those of the CLI, for `call_command`."""
        parser = super().create_parser(*args, **kwargs)

        def parse_args(args: Sequence[str] | None = None, namespace: Any = None) -> Any:
            found, words = parser.parse_known_args(args, namespace)
            found.args = words
            return found

        parser.parse_args = parse_args
        return parser

    def handle(self, *words: str, **options: Any) -> None:
        """Run `call_command("holdfast", "prune")`: raise errors instead of exiting, and use the given streams."""
        arguments = list(words)
        shared = _prepare(options, arguments)
        try:
            with redirect_stdout(_Stream(self.stdout)), redirect_stderr(_Stream(self.stderr)):
                code = holdfast.main(arguments, standalone_mode=False, obj=shared)
        except (HoldfastError, click.ClickException) as error:
            line, code = describe(error)
            raise CommandError(line, returncode=code) from error
        if code:
            raise CommandError(f"holdfast {' '.join(words)} ended with exit code {code}", returncode=code)


class _Stream(io.TextIOBase):
    """A stream of a Django command, which otherwise ends every write with a new line."""

    def __init__(self, wrapper: OutputWrapper) -> None:
        self._wrapper = wrapper

    def write(self, text: str) -> int:
        self._wrapper.write(text, ending="")
        return len(text)

    def isatty(self) -> bool:
        return bool(self._wrapper.isatty())


def _split(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Separate the options of all Django commands from the words of the CLI, which may use `-v` as a flag."""
    options: dict[str, Any] = {}
    rest: list[str] = []
    given = iter(range(len(words)))
    for at in given:
        name, mark, value = words[at].partition("=")
        following = words[at + 1] if at + 1 < len(words) else None
        if name in ("--settings", "--pythonpath"):  # `manage.py` has processed them
            if not mark:
                next(given, None)
        elif name in ("--traceback", "--no-color", "--force-color"):
            options[name.removeprefix("--").replace("-", "_")] = True
        elif name == "--verbosity" and mark:
            options["verbosity"] = _verbosity(value)
        elif name == "--verbosity" or (name == "-v" and following in VERBOSITIES):
            options["verbosity"] = _verbosity(following)
            next(given, None)
        else:
            rest.append(words[at])
    return options, rest


def _verbosity(value: str | None) -> int:
    if value not in VERBOSITIES:
        raise CommandError(f"--verbosity must be one of {', '.join(VERBOSITIES)}, not {value}")
    return int(value or 1)


def _prepare(options: dict[str, Any], words: list[str]) -> SharedOptions:
    """Set the app and the colors in the environment, for the child processes of a worker too."""
    os.environ["HOLDFAST_APP"] = TARGET
    the_app()
    if options.get("no_color"):
        os.environ["NO_COLOR"] = "1"
    if options.get("force_color"):
        os.environ["FORCE_COLOR"] = "1"
    verbosity = options.get("verbosity", 1)
    if verbosity > 1 and "worker" in words:
        words.append("--verbose")
    return SharedOptions(debug=bool(options.get("traceback")), quiet=verbosity == 0)
