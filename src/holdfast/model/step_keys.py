"""The keys of what durable functions record and wait for: the names in them, and what they mean in words."""

from __future__ import annotations

import re

_HASH = re.compile(r"-\d+:[0-9a-f]{16}(?=#|$)")


def key_name(key: str) -> str:
    """What the author called a step, without the hash of its arguments and the number of its occurrence; all else
    begins with a `$`."""
    base = key.rpartition("#")[0]
    return base if base.startswith("$") else base.rpartition("-")[0]


def key_label(key: str) -> str:
    """What a key means, in words: `charge`, `charge #2`, `sleep`, `event approved`, `join shop.resize`."""
    base, _, occurrence = key.rpartition("#")
    times = f" #{occurrence}" if occurrence not in ("", "1") else ""
    if not base.startswith("$"):
        return _HASH.sub("", base or key) + times
    kind, _, name = base[1:].partition(":")
    if kind == "undone":  # its number is that of what was undone
        return f"undone {key_label(f'{name}#{occurrence}')}"
    if kind == "join":  # of a call, which has a key itself
        return f"join {key_label(name).partition(' ')[2]}{times}"
    name = _HASH.sub("", name)
    return f"{kind} {name}{times}" if name else f"{kind}{times}"
