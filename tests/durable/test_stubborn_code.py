"""User code that ignores cancellation."""

from __future__ import annotations

import logging

import pytest

from holdfast import Context
from holdfast.engine.durable.async_executor import MAX_REJECTED_CALLS
from tests.support.durable import kinds
from tests.support.wait_until import wait_until


@pytest.mark.parametrize("swallowed", [BaseException, Exception], ids=lambda kind: kind.__name__)
def test_code_that_keeps_swallowing_its_suspension_does_not_block_other_runs(app, ledger, caplog, swallowed):
    caplog.set_level(logging.WARNING, "holdfast")

    @app.task(name="stubborn")
    async def stubborn(ctx: Context) -> str:
        ledger.write("called")
        while True:
            try:
                return await ctx.wait_for("go")
            except swallowed:
                continue

    @app.task(name="other")
    async def other() -> str:
        return "done"

    with app.worker(grace=0.1, max_resident=0):
        run = stubborn.enqueue()
        wait_until(lambda: "waiting" in kinds(run))
        assert other.enqueue().result(timeout=30) == "done"
        app.emit("go", "gone")
        assert run.result(timeout=30) == "gone"
        if swallowed is BaseException:
            assert "abandoned" in caplog.text
    assert len(ledger.lines()) == 2
    assert MAX_REJECTED_CALLS > 1000, "a loop that does end gets to its end"
