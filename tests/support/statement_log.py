"""Record which statements a store executes."""

from __future__ import annotations

import pytest

from holdfast import Holdfast


def statements(app: Holdfast, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the names of the statements that the app's store executes from now on."""
    names: list[str] = []
    get = app.store._context.statements.get

    def counting(name, limit=None):
        names.append(name)
        return get(name, limit)

    monkeypatch.setattr(app.store._context.statements, "get", counting)
    return names
