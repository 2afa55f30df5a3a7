"""Find a function by its import path, in another process than the one that has it."""

from __future__ import annotations

import importlib
import runpy
from collections.abc import Callable
from functools import cache
from typing import Any, cast

from holdfast.task.task import Task


def find(module: str, file: str, qualname: str) -> Callable[..., Any]:
    """Return the function of a task. A script is executed under another name than `__main__`."""
    found: Any = _script(file) if module == "__main__" else importlib.import_module(module)
    for part in qualname.split("."):
        found = found[part] if isinstance(found, dict) else getattr(found, part)
    function = found.fn if isinstance(found, Task) else found
    return cast("Callable[..., Any]", function)


@cache
def _script(file: str) -> dict[str, Any]:
    return runpy.run_path(file, run_name="__holdfast_script__")
