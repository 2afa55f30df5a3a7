"""Where things are kept: in the source tree if there is one, else in the user's cache."""

from __future__ import annotations

import os
from pathlib import Path


def source_tree() -> Path | None:
    """The folder of the project, unless this is an installed copy."""
    tree = Path(__file__).resolve().parents[3]
    return tree if (tree / "pyproject.toml").is_file() and (tree / "dev").is_file() else None


def cache() -> Path:
    tree = source_tree()
    if tree is not None:
        return tree / ".cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"
