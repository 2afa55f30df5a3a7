"""The dashboard and the REST API under `/api/v1`. Requires the extra `holdfast[dashboard]`.

    from holdfast.web import dashboard

    site.mount("/holdfast", dashboard(app, hosts=["ops.example.org"]))

`holdfast dashboard` serves the same site. Handlers translate between HTTP and `control`, or the app where they enqueue
runs. `middleware.py` and `auth.py` protect every route alike.
"""

from holdfast.web.oidc import OidcSettings
from holdfast.web.sign_in import Grant, SignIn
from holdfast.web.site import dashboard

__all__ = ["Grant", "OidcSettings", "SignIn", "dashboard"]
