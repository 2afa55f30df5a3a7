"""Every version of PostgreSQL that is at hand, from 14 on, runs what the newest does."""

from __future__ import annotations

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.testing import postgres_binaries
from holdfast.testing.server import PostgresServer
from tests.chaos.effects import TABLE
from tests.chaos.facts import collect_facts
from tests.chaos.verdict import judge
from tests.chaos.workload import EXPECTED, Workload
from tests.support.charges import record_charges
from tests.support.history_queries import fetch
from tests.support.ledger import Ledger
from tests.support.wait_until import wait_until

OLDEST = 14


@pytest.mark.parametrize("version", sorted(number for number in postgres_binaries.versions() if number >= OLDEST))
def test_all_kinds_of_tasks_run_on_every_version_at_hand(version, tmp_path):
    ledger = Ledger(tmp_path / "ledger")
    with PostgresServer(fsync=False, version=version) as server:
        url = server.create_database()
        with psycopg.connect(url) as own:
            own.execute(TABLE)
            assert own.info.server_version // 10_000 == version
        with Holdfast(url) as app:
            workload = Workload(app, ledger)
            app.store.prepare()
            record_charges(url)
            runs = {}
            with app.worker(lease=30):
                for kind in EXPECTED:
                    runs[f"{kind}-0"] = run = workload.start[kind](f"{kind}-0")
                    app.emit(f"go {kind}-0", "gone")
                    if kind in ("order", "plain"):
                        run.send("note", "sent")
                workload.pay("topic-0")
                runs["graph-0"].gate("ok").complete("yes")
                wait_until(lambda: not fetch(app, "select 1 from {}runs where finished_at is null limit 1"), 60)
            verdict = judge(collect_facts(app, ledger, {mark: run.id for mark, run in runs.items()}))
    assert verdict.good, verdict.findings
