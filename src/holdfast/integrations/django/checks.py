"""System checks: `manage.py check` and most commands report an invalid setting, without a traceback."""

from __future__ import annotations

import importlib
from typing import Any

from django.core import checks

from holdfast.errors import HoldfastError

TAG = "holdfast"


def register_checks() -> None:
    checks.register(check_setting, TAG)
    checks.register(check_modules, TAG)


def check_setting(**_: Any) -> list[checks.CheckMessage]:
    """Report an invalid `HOLDFAST` setting, without I/O."""
    from holdfast.integrations.django.conf import setting_error

    error = setting_error()
    return [] if error is None else [checks.Error(str(error), id="holdfast.E001")]


def check_modules(**_: Any) -> list[checks.CheckMessage]:
    """Report modules with tasks that a worker could not import."""
    from holdfast.integrations.django.conf import read_setting, setting_error, task_modules

    if setting_error() is not None:
        return []
    found: list[checks.CheckMessage] = []
    included = read_setting().get("INCLUDE", ())
    for module in (*included, *task_modules()):
        try:
            importlib.import_module(module)
        except Exception as error:
            where = 'setting HOLDFAST: "INCLUDE": ' if module in included else ""
            said = str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"
            found.append(
                checks.Error(
                    f"{where}module {module} can't be imported: {said}",
                    hint="A worker imports it at its start, and would fail.",
                    id="holdfast.E002",
                )
            )
    return found
