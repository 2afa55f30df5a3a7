"""The app of the mixed test's workers: `HOLDFAST_URL` and `LEDGER` say where."""

from __future__ import annotations

import os

from holdfast import Holdfast
from tests.support.mixed_tasks import Mixed

app = Mixed(Holdfast(), os.environ["LEDGER"]).app
