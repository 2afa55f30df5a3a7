"""Holdfast in a Django project: put `holdfast.integrations.django` into `INSTALLED_APPS`.

    from holdfast.integrations.django import app

    @app.task
    def send_invoice(order: int) -> None: ...

The app is made of the setting `HOLDFAST` (`conf.py`) when it is first asked for. `manage.py holdfast …` is the command
line with it; `backend.py` runs tasks of Django's own interface; `connections.py` shares Django's database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.app import Holdfast

    app: Holdfast

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    """`app`, made late: this package is imported before Django's settings and apps are ready."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from holdfast.integrations.django.conf import the_app

    return the_app()
