"""The web side: the dashboard, and the REST API under `/api/v1`. Needs the extra `holdfast[dashboard]`.

    from holdfast.web import dashboard

    site.mount("/holdfast", dashboard(app, hosts=["ops.example.org"]))

`holdfast dashboard` serves the same by itself. Everything here goes through `control`, or through the app where runs
are made; handlers only translate. Who comes in is decided in `visitors.py` and `guard.py`, for every route alike.
"""

from holdfast.web.site import dashboard

__all__ = ["dashboard"]
