"""Log lines of runs: the setting `Logs`, the lines as users read them, and their stored form."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import msgspec

from holdfast.errors import ConfigError
from holdfast.model.clock import MAX_STORED_MICROS, MICROS_PER_SECOND, MIN_STORED_MICROS, to_datetime
from holdfast.model.step_keys import key_label

LogLevel: TypeAlias = Literal["debug", "info", "warning", "error", "critical"]
LEVELS: dict[str, int] = {name: getattr(logging, name.upper()) for name in get_args(LogLevel)}
MAX_LINES = 100_000
MIN_BYTES = 4 * 1024
MAX_BYTES = 16 * 1024 * 1024
OFF = ("", "0", "off", "false", "none")

StoredLine: TypeAlias = tuple[float, int, str, str, str | None]
"""Time in seconds since 1970, level, logger, message and step."""


def level_number(level: object, what: str) -> int:
    """Return the number of a level, such as 20 for `"info"`. `what` names the setting in the error."""
    number = LEVELS.get(level.lower()) if isinstance(level, str) else None
    if number is None:
        raise ConfigError(f"{what} must be one of {', '.join(LEVELS)}, not {repr(level)[:60]}")
    return number


class Logs:
    """Which log lines of runs are kept, and how many. Immutable.

    Args:
        level: Keep lines of this level and above.
        max_lines: How many lines to keep of each run. The oldest are dropped first.
        max_bytes: How many bytes of lines to keep of each run.

    Example:
        ```python
        app = Holdfast(logs=Logs("debug", max_lines=5000))
        ```
    """

    __slots__ = ("level", "level_number", "max_bytes", "max_lines")

    level: str
    level_number: int
    max_lines: int
    max_bytes: int

    def __init__(self, level: LogLevel = "info", *, max_lines: int = 1000, max_bytes: int = 256 * 1024) -> None:
        object.__setattr__(self, "level_number", level_number(level, "Logs: level"))
        object.__setattr__(self, "level", level.lower())
        object.__setattr__(self, "max_lines", _checked(max_lines, "max_lines", 1, MAX_LINES))
        object.__setattr__(self, "max_bytes", _checked(max_bytes, "max_bytes", MIN_BYTES, MAX_BYTES))

    @classmethod
    def of(cls, setting: object) -> Logs | None:
        """Return the setting `logs` as `Logs`: a level is enough. None if it is off."""
        if isinstance(setting, Logs):
            return setting
        if setting is None or setting is False or (isinstance(setting, str) and setting.strip().lower() in OFF):
            return None
        if not isinstance(setting, str):
            raise ConfigError(f"logs must be a level such as 'info', a Logs or None, not {repr(setting)[:60]}")
        number = level_number(setting.strip(), "logs")
        return cls(next(name for name in get_args(LogLevel) if LEVELS[name] == number))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Logs is immutable; create a new one instead of setting {name}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Logs) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        return f"Logs({self.level!r}, max_lines={self.max_lines}, max_bytes={self.max_bytes})"

    def _key(self) -> tuple[int, int, int]:
        return self.level_number, self.max_lines, self.max_bytes


def _checked(value: Any, name: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ConfigError(f"Logs: {name} must be a number from {low:,} to {high:,}, not {repr(value)[:60]}")
    return value


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line that the code of a run logged.

    Attributes:
        seq: Its number in the run. Pass it as `after` to continue behind it. Lines that were dropped are counted.
        time: When it was logged, by the clock of the worker.
        level: Its level, such as `INFO`.
        logger: The name of its logger.
        message: The message, with the traceback of the exception if there is one. Secrets are masked.
        attempt: The attempt that logged it.
        step: The step of a durable function that logged it; None for jobs and for the body of the function.
    """

    seq: int
    time: datetime
    level: str
    logger: str
    message: str
    attempt: int
    step: str | None = None


class LogPage(list[LogLine]):
    """The lines of a run, oldest first.

    Attributes:
        dropped: How many of the run's lines were dropped, because it logged more than is kept.
        after: Pass it to get the next page; None if there are no more lines yet.
    """

    dropped: int
    after: int | None

    def __init__(self, lines: Iterable[LogLine] = (), dropped: int = 0, after: int | None = None) -> None:
        super().__init__(lines)
        self.dropped = dropped
        self.after = after


class LogFilter(NamedTuple):
    """Which lines to return: from a level on, and with a text in the message or the name of the logger."""

    level: int = 0
    search: str = ""

    @classmethod
    def of(cls, level: str | None, search: str | None) -> LogFilter:
        if search is not None and not isinstance(search, str):
            raise ConfigError(f"search must be a str, not {type(search).__name__}")
        return cls(0 if level is None else level_number(level, "level"), (search or "").lower())

    def accepts(self, line: StoredLine) -> bool:
        _, level, logger, message, _ = line
        return level >= self.level and (
            not self.search or self.search in message.lower() or self.search in logger.lower()
        )


_decode = msgspec.json.Decoder(list[StoredLine]).decode


def decode_lines(text: str) -> list[StoredLine] | None:
    """Decode a group of lines; None if it can't be read: another program wrote it, or it is encrypted."""
    try:
        return _decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def shown_lines(lines: Iterable[StoredLine], first: int, attempt: int, accepts: LogFilter) -> Iterator[LogLine]:
    """Yield the lines of a group that the filter accepts; `first` is the number of the first one."""
    for seq, line in enumerate(lines, first):
        if accepts.accepts(line):
            at, level, logger, message, step = line
            micros = min(max(round(at * MICROS_PER_SECOND), MIN_STORED_MICROS), MAX_STORED_MICROS)
            label = None if step is None else key_label(step)
            yield LogLine(seq, to_datetime(micros), str(logging.getLevelName(level)), logger, message, attempt, label)
