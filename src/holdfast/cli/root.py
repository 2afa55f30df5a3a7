"""The group `holdfast`, the options that every command takes, before the verb or after it, and how errors end.

A command is a function decorated with `@holdfast.command()` in a module of its subject; `commands.py` lists those.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import TextIOWrapper
from typing import Any

import click

from holdfast.errors import HoldfastError, ResultTimeout, RunCancelled, RunFailed

FAILED = 1
USAGE = 2
INTERRUPTED = 130


@dataclass(slots=True)
class SharedOptions:
    """What was said on the command line about where to work and how to tell of it."""

    app: str | None = None
    url: str | None = None
    schema: str | None = None
    json: bool = False
    debug: bool = False


def _note(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    shared = ctx.ensure_object(SharedOptions)
    if value is not None and value is not False:
        setattr(shared, str(param.name), value)


SHARED: dict[str, dict[str, Any]] = {
    "app": {"metavar": "MODULE:APP", "help": "Where the app is, like shop.tasks:app."},
    "url": {"metavar": "URL", "help": "The database, like sqlite:///jobs.db or postgresql://host/shop."},
    "schema": {"metavar": "NAME", "help": "The schema in a PostgreSQL database.  [default: holdfast]"},
    "json": {"is_flag": True, "help": "Print JSON."},
    "debug": {"is_flag": True, "help": "Show tracebacks."},
}


def _shared_options(names: Iterable[str] = SHARED) -> list[click.Parameter]:
    return [click.Option([f"--{name}"], expose_value=False, callback=_note, **SHARED[name]) for name in names]


class HoldfastCommand(click.Command):
    """A command that takes the shared options too, all or those that it `takes`."""

    def __init__(self, *args: Any, takes: Iterable[str] = SHARED, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params = [*self.params, *_shared_options(takes)]


class HoldfastGroup(click.Group):
    """Turns errors into one line that says what to do; a traceback only with --debug. That whoever reads our output has
    enough (`| head`) is seen to by click."""

    command_class = HoldfastCommand

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        shared = extra.setdefault("obj", SharedOptions())
        code: Any = None
        try:
            _never_fail_to_encode()
            # named so also when run as `python -m holdfast.cli`: what help and errors say can be copied
            code = super().main(args, "holdfast", complete_var, False, **extra)
        except (KeyboardInterrupt, click.exceptions.Abort):
            code = INTERRUPTED
        except Exception as error:
            if _interrupted(error):
                sys.exit(INTERRUPTED)
            if shared.debug and not isinstance(error, click.ClickException):
                raise
            line, code = describe(error)
            click.echo(line, err=True)
        sys.exit(code if isinstance(code, int) else 0)


def _interrupted(error: BaseException | None) -> bool:
    """Whether an error came of Ctrl-C, which may strike inside of a lock and leave it in a state that the lock's own
    clean-up doesn't expect."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def describe(error: Exception) -> tuple[str, int]:
    """The one line about an error, and the exit code."""
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else "holdfast"
        return f"{command}: {_one_line(error.format_message())} See `{command} --help`.", USAGE
    if isinstance(error, click.ClickException):
        return f"holdfast: {_one_line(error.format_message())}", error.exit_code
    if isinstance(error, RunFailed | RunCancelled | ResultTimeout):
        return f"holdfast: {_one_line(str(error))}", FAILED
    if isinstance(error, HoldfastError):
        return f"holdfast: {_one_line(str(error))}", USAGE
    kind = type(error).__name__
    return f"holdfast: unexpected {kind}: {_one_line(str(error))}; --debug shows where", FAILED


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _never_fail_to_encode() -> None:
    """A terminal that can't show a character gets its escape instead."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@click.group(
    cls=HoldfastGroup,
    params=_shared_options(),
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="holdfast")
@click.pass_context
def holdfast(ctx: click.Context) -> int:
    """Runs functions that must finish.

    Options may stand before the command or after it. The app also comes from $HOLDFAST_APP, or from [tool.holdfast]
    in pyproject.toml; the database from the app, or from $HOLDFAST_URL.

    \b
    Examples:
      holdfast worker --app shop.tasks:app
      holdfast runs --state failed
      holdfast show 0199a3f2-6c1e
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        return USAGE
    return 0


pass_shared: Callable[..., Any] = click.make_pass_decorator(SharedOptions, ensure=True)
"""Gives a command what was said in the shared options, as its first argument."""
