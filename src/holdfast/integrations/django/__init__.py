"""Holdfast in a Django project: add `holdfast.integrations.django` to `INSTALLED_APPS`.

    from holdfast.integrations.django import app

    @app.task
    def send_invoice(order: int) -> None: ...

The first access creates the app from the `HOLDFAST` setting (`conf.py`). `manage.py holdfast …` is the CLI with this
app; `backend.py` implements Django's task interface; `connections.py` shares Django's database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.app import Holdfast

    app: Holdfast

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    """Create `app` on demand: this package is imported before Django's settings are ready."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from holdfast.integrations.django.conf import the_app

    return the_app()
