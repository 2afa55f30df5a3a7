"""How log lines look in a terminal: `holdfast worker` shows them so. A library's user sets up logging as they like."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, Literal, TextIO, TypeAlias

from holdfast.telemetry.fields import JsonLines, RunFields

DIM = "\x1b[2m"
PLAIN = "\x1b[0m"
COLOURS = {logging.WARNING: "\x1b[33m", logging.ERROR: "\x1b[31m", logging.CRITICAL: "\x1b[31m"}


LogFormat: TypeAlias = Literal["text", "json"]


class Shown(logging.StreamHandler[TextIO]):
    """What is shown on standard error, and how `show_log` was asked to."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        self.settings = settings
        self.addFilter(RunFields())


def show_log(verbose: bool, prefix: str = "", style: LogFormat = "text") -> None:
    """Show what Holdfast logs, every run with `verbose`, and warnings of everyone else, on standard error. As JSON each
    line has the fields of the run that it was written in."""
    handler = Shown({"verbose": verbose, "prefix": prefix, "style": style})
    handler.setFormatter(JsonLines() if style == "json" else Lines(coloured(sys.stderr), prefix))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logging.getLogger("holdfast").setLevel(logging.DEBUG if verbose else logging.INFO)


def log_shown() -> dict[str, Any] | None:
    """How the log of this process is shown, as `show_log` takes it; None where that is the application's business."""
    handlers = logging.getLogger().handlers
    return next((handler.settings for handler in handlers if isinstance(handler, Shown)), None)


def coloured(stream: TextIO) -> bool:
    """Whether to colour: on a terminal, unless $NO_COLOR; also where $FORCE_COLOR says that a terminal comes after."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


class Lines(logging.Formatter):
    """Time, level and message. What an exception's text brings along stays inside its line: further lines are
    indented, control characters are spelled out."""

    def __init__(self, colours: bool, prefix: str = "") -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")
        self._colours = colours
        self._prefix = prefix

    def format(self, record: logging.LogRecord) -> str:
        first, *more = super().format(record).split("\n")
        text = f"\n{self._prefix}    ".join(map(_printable, [first, *more]))
        if not self._colours:
            return self._prefix + text
        time, rest = text[:8], text[8:]
        colour = COLOURS.get(record.levelno, "")
        return f"{self._prefix}{DIM}{time}{PLAIN}{colour}{rest}{PLAIN if colour else ''}"


def _printable(line: str) -> str:
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in line)
