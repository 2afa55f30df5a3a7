"""The style sheet, the scripts and the icon, read once; their addresses change whenever they do."""

from __future__ import annotations

import hashlib
from importlib import resources
from typing import NamedTuple

KINDS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


class File(NamedTuple):
    """A file as it is sent."""

    data: bytes
    kind: str
    version: str


def _read() -> dict[str, File]:
    found = {}
    for file in (resources.files("holdfast.web") / "static").iterdir():
        kind = KINDS.get(file.name.rpartition(".")[2])
        if kind is not None:
            data = file.read_bytes()
            found[file.name] = File(data, kind, hashlib.sha256(data).hexdigest()[:12])
    return found


FILES = _read()


def address(name: str) -> str:
    """Where a page finds a file."""
    return f"/static/{name}?v={FILES[name].version}"
