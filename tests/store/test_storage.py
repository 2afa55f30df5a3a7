"""Storage of rows on PostgreSQL, which writes a new version of a row for each change."""

from __future__ import annotations

from contextlib import closing

from tests.support.store_harness import StoreHarness


def pages(harness):
    """Return the page of the table on which each run is stored."""
    return dict(harness.sql("select id, (cast(cast(ctid as text) as point))[0] from {schema}runs"))


def test_most_runs_that_are_claimed_stay_on_their_page(postgres_url):
    with closing(StoreHarness(postgres_url)) as harness:
        harness.session("w")
        harness.add_many(200)
        before = pages(harness)
        claimed = harness.claim("w", 128)
        after = pages(harness)
        assert sum(before[claim.id] == after[claim.id] for claim in claimed) > 100


def test_tables_that_change_much_say_so(postgres_url):
    with closing(StoreHarness(postgres_url)) as harness:
        settings = "select relname, reloptions from pg_class where relkind = 'r' and reloptions is not null"
        assert dict(harness.sql(settings)) == {
            "runs": [
                "fillfactor=50",
                "autovacuum_analyze_scale_factor=0.2",
                "autovacuum_vacuum_scale_factor=0.02",
                "autovacuum_vacuum_cost_limit=2000",
            ],
            "limits": ["fillfactor=50"],
        }
