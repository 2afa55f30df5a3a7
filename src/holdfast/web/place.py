"""`Place`: what all handlers share. The app, its database, and who may come in."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.app import Holdfast
from holdfast.control import Control
from holdfast.web.visitors import Visitors


@dataclass(frozen=True, slots=True)
class Place:
    """One app's database, seen from the web."""

    app: Holdfast
    control: Control
    visitors: Visitors
