"""The pruner deletes in batches, with pauses as long as a batch takes."""

from __future__ import annotations

import time

from holdfast.engine.loops.maintenance import Pruner

OLD = 40 * 86_400_000_000


def test_the_pause_between_batches_is_no_longer_than_a_batch(harness):
    for _ in range(3):
        runs = [harness.new() for _ in range(400)]
        harness.store.enqueuer.enqueue(runs)
    harness.sql("update {schema}runs set state = 'done', finished_at = :now, expires_at = :now", now=harness.clock())
    harness.clock.advance(OLD / 1_000_000)
    pruner = Pruner(harness.store, OLD)
    pauses = []
    while not pauses or pauses[-1] < 1:
        since = time.monotonic()
        pauses.append(pruner.tick())
        assert pauses[-1] > 1 or pauses[-1] <= time.monotonic() - since
    assert len(pauses) == 3
    assert harness.rows("runs") == 0


def test_counters_of_limits_are_pruned_in_batches(harness):
    for n in range(1200):
        harness.sql(
            "insert into {schema}limits (place, name, touched_at) values (:place, 'by user', :now)",
            place=f'["by user", "{n}"]', now=harness.clock(),
        )  # fmt: skip
    harness.clock.advance(3601)
    pruner = Pruner(harness.store, OLD)
    pauses = [pruner.tick() for _ in range(3)]
    assert [pause < 1 for pause in pauses] == [True, True, False]
    assert harness.rows("limits") == 0
