"""The `holdfast` command group, the options all commands share, and error handling.

A command is a function decorated with `@holdfast.command()`; `commands.py` imports all modules that define commands.
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
    """The options that every command takes, before or after its name."""

    app: str | None = None
    url: str | None = None
    schema: str | None = None
    json: bool = False
    debug: bool = False
    quiet: bool = False
    """Print no remarks. Set by `manage.py holdfast --verbosity 0`."""


def _store_option(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    shared = ctx.ensure_object(SharedOptions)
    if value is not None and value is not False:
        setattr(shared, str(param.name), value)


SHARED: dict[str, dict[str, Any]] = {
    "app": {"metavar": "MODULE:APP", "help": "The app, such as shop.tasks:app."},
    "url": {"metavar": "URL", "help": "The database, such as sqlite:///jobs.db or postgresql://host/shop."},
    "schema": {"metavar": "NAME", "help": "The PostgreSQL schema.  [default: holdfast]"},
    "json": {"is_flag": True, "help": "Print JSON."},
    "debug": {"is_flag": True, "help": "Show tracebacks."},
}


def _shared_options(names: Iterable[str] = SHARED) -> list[click.Parameter]:
    return [click.Option([f"--{name}"], expose_value=False, callback=_store_option, **SHARED[name]) for name in names]


class HoldfastCommand(click.Command):
    """A command with the shared options that it `takes`; all by default."""

    def __init__(self, *args: Any, takes: Iterable[str] = SHARED, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.params = [*self.params, *_shared_options(takes)]


class HoldfastGroup(click.Group):
    """Prints an error as one line, and a traceback only with --debug. Click handles a closed pipe (`| head`)."""

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
            _escape_unencodable()
            # The name is fixed, so that commands in help and errors can be copied after `python -m holdfast.cli` too.
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
    """Return whether Ctrl-C caused an error: it may interrupt a lock's own cleanup, which then raises another error."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


def describe(error: Exception) -> tuple[str, int]:
    """Return the line to print for an error, and the exit code."""
    if isinstance(error, click.UsageError):
        command = error.ctx.command_path if error.ctx else "holdfast"
        return f"{command}: {_sentence(_one_line(error.format_message()))} See `{command} --help`.", USAGE
    if isinstance(error, click.ClickException):
        return f"holdfast: {_one_line(error.format_message())}", error.exit_code
    if isinstance(error, RunFailed | RunCancelled | ResultTimeout):
        return f"holdfast: {_one_line(str(error))}", FAILED
    if isinstance(error, HoldfastError):
        return f"holdfast: {_one_line(str(error))}", USAGE
    kind = type(error).__name__
    return f"holdfast: unexpected {kind}: {_one_line(str(error))}; --debug shows the traceback", FAILED


def _one_line(text: str) -> str:
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _escape_unencodable() -> None:
    """Escape characters that the terminal can't show."""
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
    """Durable execution for Python.

    Options may precede or follow the command. The app can also be set with $HOLDFAST_APP or [tool.holdfast] in
    pyproject.toml; the database comes from the app or $HOLDFAST_URL.

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
"""Pass the shared options to a command as its first argument."""
