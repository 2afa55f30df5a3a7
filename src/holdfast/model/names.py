"""Validation of user-defined names (queues, tasks, tenants, tags, keys), and dotted names of classes and functions.

Every name that is stored passes through `check_name`.
"""

from __future__ import annotations

import platform
import re
import sys
from pathlib import Path
from typing import Any

from holdfast.errors import ConfigError

MAX_NAME_CHARS = 200
MAX_KEY_CHARS = 500

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_QUOTED_CHARS = 40


def check_name(value: object, what: str, max_chars: int = MAX_NAME_CHARS) -> str:
    """Return the name if it is valid, else raise ConfigError. `what` says in the message what it names."""
    if not isinstance(value, str):
        raise ConfigError(f"{what} must be a str, not {type(value).__name__}")
    if not value:
        raise ConfigError(f"{what} must not be empty")
    if len(value) > max_chars:
        raise ConfigError(f"{what} may have at most {max_chars} characters: {quoted(value)} has {len(value):,}")
    for pattern, problem in ((_CONTROL, "a control character"), (_SURROGATE, "a lone surrogate")):
        if found := pattern.search(value):
            raise ConfigError(
                f"{what} must not contain {problem}: {quoted(value)} has {found.group()!r} at position {found.start()}"
            )
    return str(value)


def check_queue(value: object, what: str) -> str:
    """Return the name of a queue. Names that start with `$` are reserved for Holdfast."""
    name = check_name(value, what)
    if name.startswith("$"):
        raise ConfigError(f"{what} must not start with $, which is reserved for Holdfast: {quoted(name)}")
    return name


def check_actor(by: str | None) -> str | None:
    """Return the name of the person who acts, for the history, if given."""
    return None if by is None else check_name(by, "by")


def actor_or_user(by: str | None) -> str:
    """Return the name of the person who acts, for the history: the given one, else the user of this process."""
    if by is not None:
        return check_name(by, "by")
    import getpass  # imported here because few processes need it

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # the user id has no entry
        user = "unknown"
    return f"{user}@{platform.node()}"


def quoted(value: str) -> str:
    """Return a quoted form for messages, truncated and safe to print."""
    cut = value if len(value) <= _MAX_QUOTED_CHARS else value[:_MAX_QUOTED_CHARS] + "…"
    return ascii(cut) if _SURROGATE.search(cut) else repr(cut)


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun for messages: `1 run`, `2,000 runs`. The default plural appends an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def dotted_name(thing: Any) -> str:
    """Return `module.qualname`, which is the same in a script and in a process that imports its file."""
    return f"{module_name(thing)}.{thing.__qualname__}"


def type_name(kind: type[Any]) -> str:
    """Return the name of a class for messages: with its module, except for builtins."""
    return kind.__qualname__ if kind.__module__ == "builtins" else dotted_name(kind)


def module_name(thing: Any) -> str:
    """Return the module of a class or function. A script gets the name under which its file can be imported."""
    return import_name(getattr(thing, "__module__", None))


def import_name(name: str | None) -> str:
    """Return the import name of a module with this `__name__`; for a script, the name of its file."""

    name = name or "__main__"
    if name not in ("__main__", "__mp_main__"):
        return str(name)
    main = sys.modules.get(name)
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name not in ("__main__", "__mp_main__"):
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else "__main__"
