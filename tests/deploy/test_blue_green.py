"""A deploy with two versions of the code side by side, as the page on deployment describes it."""

from __future__ import annotations

import json
import sys
from uuid import uuid4

import pytest
from click.testing import CliRunner

from holdfast import Holdfast
from holdfast.cli.commands import holdfast
from tests.support.wait_until import wait_until

BLUE = """
from holdfast import Context, Holdfast

app = Holdfast(URL)
done = []

def reserve(order: int) -> None:
    done.append(f"reserve {order}")

def ship(order: int) -> None:
    done.append(f"ship {order}")

@app.task(name="shop.order")
async def order(ctx: Context, number: int) -> str:
    await ctx.step(reserve, number)
    await ctx.wait_for(f"paid-{number}")
    await ctx.step(ship, number)
    return "VERSION"
"""
GREEN = BLUE.replace("await ctx.step(ship, number)", "await ctx.step(ship, number)\n    await ctx.progress(1, 1)")
CHANGED = BLUE.replace("await ctx.step(reserve, number)", "await ctx.step(reserve, number + 1)")
RENAMED = CHANGED.replace("shop.order", "shop.order_2")


@pytest.fixture
def release(database_url, tmp_path, monkeypatch):
    """Write a version of the code and return its module."""
    monkeypatch.syspath_prepend(tmp_path)
    modules = []

    def release(source: str, version: str):
        name = f"{version}_{uuid4().hex}"
        (tmp_path / f"{name}.py").write_text(source.replace("URL", repr(database_url)).replace("VERSION", version))
        modules.append(__import__(name))
        return modules[-1]

    yield release
    for module in modules:
        module.app.close()
        del sys.modules[module.__name__]


def run_cli(module, *words: str):
    return CliRunner().invoke(holdfast, [*words, "--app", f"{module.__name__}:app"])


def waiting(app: Holdfast) -> int:
    return len(app.runs(state="waiting"))


def test_runs_of_blue_continue_on_green_after_a_check_that_passes(release):
    blue, green = release(BLUE, "blue"), release(GREEN, "green")
    with blue.app.worker():
        run = blue.order.enqueue(7)
        wait_until(lambda: waiting(blue.app) == 1)
        assert run_cli(green, "check").exit_code == 0
        with green.app.worker():
            pass  # both colors run, then blue stops
    with green.app.worker():
        green.app.emit("paid-7")
        assert green.app.get_run(run.id).result(timeout=30) == "green"
    assert (blue.done, green.done) == (["reserve 7"], ["ship 7"])


def test_a_task_that_cannot_continue_gets_a_new_name_and_blue_finishes_its_runs(release):
    blue, changed, green = release(BLUE, "blue"), release(CHANGED, "changed"), release(RENAMED, "green")
    with blue.app.worker():
        run = blue.order.enqueue(7)
        wait_until(lambda: waiting(blue.app) == 1)
        assert run_cli(changed, "check").exit_code == 4, "it would reserve again"
        assert run_cli(green, "check").exit_code == 0, "a worker of blue has the task of the old name"
        with green.app.worker():
            fresh = green.order.enqueue(8)
            for number in (7, 8):
                green.app.emit(f"paid-{number}")
            assert run.result(timeout=30) == "blue"
            assert fresh.result(timeout=30) == "green"
            states = [word for state in ("ready", "running", "waiting", "scheduled") for word in ("--state", state)]
            left = run_cli(green, "runs", "--task", "shop.order", *states, "--json")
            assert json.loads(left.stdout) == [], "blue may stop"
    assert (blue.done, green.done) == (["reserve 7", "ship 7"], ["reserve 9", "ship 8"])
