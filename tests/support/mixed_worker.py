"""The app of the workers of the mixed load, configured by `HOLDFAST_URL` and `LEDGER`."""

from __future__ import annotations

import os

from holdfast import Holdfast
from tests.support.mixed_tasks import Mixed

app = Mixed(Holdfast(), os.environ["LEDGER"]).app
