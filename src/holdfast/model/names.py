"""Names that people give: of queues, tasks, tenants, tags, keys; and the dotted names of classes and functions.

Every name that reaches the database passes through `check_name`. Quoting of SQL identifiers isn't done here.
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
_SHOWN = 40


def check_name(value: object, what: str, longest: int = MAX_NAME_CHARS) -> str:
    """The name itself, if it can be one. `what` says in the message whose name it is."""
    if not isinstance(value, str):
        raise ConfigError(f"{what} must be a str, not {type(value).__name__}")
    if not value:
        raise ConfigError(f"{what} must not be empty")
    if len(value) > longest:
        raise ConfigError(f"{what} may have {longest} characters, but {quoted(value)} has {len(value):,}")
    for pattern, fault in ((_CONTROL, "a control character"), (_SURROGATE, "a lone surrogate")):
        if found := pattern.search(value):
            raise ConfigError(
                f"{what} must not contain {fault}: {quoted(value)} has {found.group()!r} at position {found.start()}"
            )
    return str(value)


def check_queue(value: object, what: str) -> str:
    """The name of a queue. Those that begin with a `$` are Holdfast's own."""
    name = check_name(value, what)
    if name.startswith("$"):
        raise ConfigError(f"{what} must not begin with a $: such queues are Holdfast's own, but it is {quoted(name)}")
    return name


def check_actor(by: str | None) -> str | None:
    """Who does something, for the history, where anybody is named."""
    return None if by is None else check_name(by, "by")


def actor_or_user(by: str | None) -> str:
    """Who does something, for the history: the one that is named, else the user of this process."""
    if by is not None:
        return check_name(by, "by")
    import getpass  # with what it imports, only where somebody acts

    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no entry for it
        user = "unknown"
    return f"{user}@{platform.node()}"


def quoted(value: str) -> str:
    """A quoted form for messages, cut when it is long, safe to print whatever is in it."""
    cut = value if len(value) <= _SHOWN else value[:_SHOWN] + "…"
    return ascii(cut) if _SURROGATE.search(cut) else repr(cut)


def dotted_name(thing: Any) -> str:
    """`module.qualname` of a class or function: the same in a script as in a process that imports its file."""
    return f"{module_name(thing)}.{thing.__qualname__}"


def type_name(kind: type[Any]) -> str:
    """A class for people: builtins by their name alone, others with their module."""
    return kind.__qualname__ if kind.__module__ == "builtins" else dotted_name(kind)


def module_name(thing: Any) -> str:
    """The module of a class or function; that of a script is named as an import of its file would name it."""
    return import_name(getattr(thing, "__module__", None))


def import_name(name: str | None) -> str:
    """A module by its `__name__`; a script as an import of its file would name it."""
    name = name or "__main__"
    if name not in ("__main__", "__mp_main__"):
        return str(name)
    main = sys.modules.get(name)
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name not in ("__main__", "__mp_main__"):
        return str(spec.name)
    file = getattr(main, "__file__", None)
    return Path(file).stem if file else "__main__"
