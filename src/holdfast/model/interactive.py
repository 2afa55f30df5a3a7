"""Notebooks and interactive sessions, where code is edited and run again in the same process."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path


def is_interactive() -> bool:
    """Return whether this process is a notebook, IPython or an interactive Python session."""
    return hasattr(builtins, "__IPYTHON__") or hasattr(sys, "ps1")


def is_defined_interactively(defined: object) -> bool:
    """Return whether a function or class was defined in a cell or at a prompt, so that it may be redefined."""
    return getattr(defined, "__module__", None) == "__main__" and is_interactive()


def has_source_file(function: object) -> bool:
    """Return whether another process can load a function: it isn't in `__main__`, or that is a file."""
    code = getattr(function, "__code__", None)
    return getattr(function, "__module__", None) != "__main__" or code is None or Path(code.co_filename).is_file()


def note(text: str) -> None:
    """Tell the user of an interactive session something that isn't an error."""
    sys.stderr.write(f"holdfast: {text}\n")


def await_hint() -> str:
    """Return what an error about a blocking call adds in a notebook."""
    return "; cells of a notebook run in an event loop, and may use await" if is_interactive() else ""
