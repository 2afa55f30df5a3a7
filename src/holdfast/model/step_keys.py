"""Names and display labels of the keys under which durable functions record steps and waits."""

from __future__ import annotations

import re

_HASH = re.compile(r"-\d+:[0-9a-f]{16}(?=#|$)")
_UNDO_COUNT = re.compile(r"(#\d+)~\d+(?=/|$)")


def key_name(key: str) -> str:
    """Return the name of a step without the hash of its arguments and its occurrence. Other keys start with `$`."""
    base = key.rpartition("#")[0]
    return base if base.startswith("$") else base.rpartition("-")[0]


def key_identity(key: str) -> str:
    """Return a key without the hash of the arguments and the occurrence: `charge`, `$spawn:shop.resize`, `$now`."""
    return _HASH.sub("", key.rpartition("#")[0])


def without_digest(name: str) -> str:
    """Return a name in a key without the hash of the arguments behind it."""
    return _HASH.sub("", name)


def key_digest(key: str) -> str:
    """Return the hash of the arguments in the key of a step or child, without those of its name; or nothing."""
    found = _HASH.search(key)
    return "" if found is None else found.group()


def without_undo_count(name: str) -> str:
    """Return the key of a step or of its part, given its name in idempotency keys, which differs after an undo."""
    return _UNDO_COUNT.sub(r"\1", name, count=1)


def is_ask_key(key: str) -> bool:
    """Return whether it is the key of a wait for an ask."""
    return key.startswith(("$ask:", "$serve#"))


def key_label(key: str) -> str:
    """Return a label for display: `charge`, `charge #2`, `sleep`, `event approved`, `join shop.resize`."""
    base, _, occurrence = key.rpartition("#")
    times = f" #{occurrence}" if occurrence not in ("", "1") else ""
    if not base.startswith("$"):
        return _HASH.sub("", base or key) + times
    kind, _, name = base[1:].partition(":")
    if kind == "undone":  # its occurrence is that of the step that was undone
        return f"undone {key_label(f'{name}#{occurrence}')}"
    if kind == "join":  # its name is the key of the call
        return f"join {key_label(name).partition(' ')[2]}{times}"
    if kind == "reply":  # its name ends with the id of the ask
        name = name.rpartition(":")[0]
    name = _HASH.sub("", name)
    return f"{kind} {name}{times}" if name else f"{kind}{times}"
