"""The model that gives runs their permissions and their place in Django's admin. It has no table.

Django also sends `post_migrate` only to apps that have this module.
"""

from __future__ import annotations

from typing import Any

from django.db import models


class NoRows(models.Manager):  # type: ignore[misc]  # Django is untyped here
    """Finds nothing, so that commands that read every model, such as `dumpdata`, don't look for a table."""

    def get_queryset(self) -> Any:
        return super().get_queryset().none()


class _Meta:
    app_label = "holdfast"
    managed = False
    verbose_name = "run"
    base_manager_name = "objects"
    default_permissions = ()
    permissions = (("view_run", "Can view runs"), ("change_run", "Can retry and cancel runs"))


# Not a class statement, because the package has a class Run, the handle. The admin's URLs contain this name.
Run = type(models.Model)(
    "Run",
    (models.Model,),
    {
        "__module__": __name__,
        "__doc__": "A run in the admin.",
        "__str__": lambda self: f"run {self.pk}",
        "id": models.UUIDField(primary_key=True),
        "objects": NoRows(),
        "Meta": _Meta,
    },
)
