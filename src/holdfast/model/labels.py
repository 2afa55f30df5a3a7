"""Labels of workers, and the labels that a task requires or prefers.

A label has a name and a value, such as `gpu=a100`. A task requires a value, or with `"*"` only that the worker has the
label.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import ConfigError
from holdfast.model.names import check_name, quoted

ANY_VALUE = "*"
MAX_LABELS = 50
PREFERENCE_S = 1.0
"""For how long a run is left to workers with the labels that its task prefers."""


def check_labels(value: Any, what: str) -> dict[str, str]:
    """Return the labels of a worker."""
    labels = _check(value, what)
    for name, given in labels.items():
        if given == ANY_VALUE:
            raise ConfigError(f'{what}: the value of {name} must not be "*", which tasks use for any value')
    return labels


def check_requires(value: Any, what: str) -> dict[str, str]:
    """Return the labels that a task requires."""
    return _check(value, what)


def _check(value: Any, what: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ConfigError(f'{what} must be a mapping like {{"gpu": "a100"}}, not {type(value).__name__}')
    if len(value) > MAX_LABELS:
        raise ConfigError(f"{what} may have at most {MAX_LABELS} labels, not {len(value):,}")
    for name in value:
        check_name(name, f"a name in {what}")
        if "=" in name:
            raise ConfigError(f"a name in {what} must not contain =: {quoted(name)}")
    return {name: check_name(value[name], f"{what}: the value of {name}") for name in sorted(value)}


def meets(labels: Mapping[str, str], requires: Mapping[str, str]) -> bool:
    """Return whether a worker with these labels may execute a task that requires those."""
    return all(name in labels if value == ANY_VALUE else labels.get(name) == value for name, value in requires.items())


def format_labels(labels: Mapping[str, str]) -> str:
    """Return labels for display: `gpu=a100, region=eu`. Of a required label of any value, only the name is shown."""
    return ", ".join(name if value == ANY_VALUE else f"{name}={value}" for name, value in labels.items())
