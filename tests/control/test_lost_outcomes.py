"""What a restored database has lost, compared with the one that it replaces."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Context, Holdfast
from holdfast.control import Control
from holdfast.control import lost_outcomes as lost_outcomes_module
from holdfast.control.backup import backup, restore
from holdfast.control.lost_outcomes import lost_outcomes
from holdfast.errors import ConfigError

pytestmark = pytest.mark.usefixtures("small_pages")
SINCE = datetime.now(UTC) - timedelta(hours=1)


@pytest.fixture
def small_pages(monkeypatch):
    monkeypatch.setattr(lost_outcomes_module, "PAGE_RUNS", 1)


def tasks(app):
    @app.task(name="pay")
    async def pay(n: int) -> int:
        return n

    @app.task(name="ship")
    async def ship(ctx: Context, n: int) -> int:
        await ctx.step(pay.fn, n)
        await ctx.wait_for("go")
        await ctx.step(pay.fn, n + 1)
        return int(await ctx.wait_for("on"))

    return pay, ship


def lost(former, restored, since=SINCE):
    return {
        str(each.id): (each.what, each.state_before, each.state_now) for each in lost_outcomes(former, restored, since)
    }


class Shop:
    """A former database with runs before and after the copy."""

    def __init__(self, app, copy):
        pay, ship = tasks(app)
        self.same = pay.enqueue(0)
        self.waits = ship.enqueue(5)
        app.worker().drain()
        self.finished, self.further, self.ready = pay.enqueue(1), ship.enqueue(2), pay.options(delay=3600).enqueue(3)
        self.since = datetime.now(UTC)
        copy()
        app.worker().drain()
        self.missing = pay.options(key="order-4").enqueue(4)

    @property
    def expected(self):
        return {
            str(self.finished.id): ("finished", "done", "ready"),
            str(self.further.id): ("further", "waiting", "ready"),
            str(self.missing.id): ("missing", "ready", None),
        }


def test_a_restored_file_is_compared_with_the_former_one(tmp_path):
    former, file, new = f"sqlite:///{tmp_path}/a.db", tmp_path / "copy", f"sqlite:///{tmp_path}/b.db"
    with Holdfast(former) as app:
        shop = Shop(app, lambda: backup(former, file))
        restore(file, new, paused=True)
        with Holdfast(new) as other:
            assert lost(Control(app.store), Control(other.store), shop.since) == shop.expected
            assert lost(Control(app.store), Control(app.store)) == {}
            tasks(other)
            Control(other.store).queues.resume(["default"])
            other.worker().drain()
            (left,) = lost(Control(app.store), Control(other.store))
            assert left == str(shop.missing.id), "what has run again isn't lost any more"


def test_a_copy_on_postgresql_is_compared_with_the_former_database(postgres_url, databases):
    copies = []
    with Holdfast(postgres_url) as app:

        def copy():
            app.close()  # a template has no other connections
            copies.append(databases.create_empty(postgres_url.partition("?")[0].rpartition("/")[2]))

        shop = Shop(app, copy)
        with Holdfast(copies[0]) as other:
            assert lost(Control(app.store), Control(other.store), shop.since) == shop.expected
    databases.drop(copies[0])


def test_steps_that_were_recorded_after_the_copy_are_told(tmp_path):
    former, file, new = f"sqlite:///{tmp_path}/a.db", tmp_path / "copy", f"sqlite:///{tmp_path}/b.db"
    with Holdfast(former) as app:
        _, ship = tasks(app)
        run, same = ship.enqueue(1), ship.options(tenant="t").enqueue(2)
        app.worker().drain()
        backup(former, file)
        restore(file, new)
        app.emit("go", 1)
        app.worker().drain()
        with Holdfast(new) as other:
            found = lost(Control(app.store), Control(other.store))
    assert found[str(run.id)] == ("further", "waiting", "waiting")
    assert same.id != run.id


def test_databases_of_different_origin_are_refused(tmp_path):
    with Holdfast(f"sqlite:///{tmp_path}/a.db") as one, Holdfast(f"sqlite:///{tmp_path}/b.db") as other:
        one.store.prepare()
        other.store.prepare()
        with pytest.raises(ConfigError, match="different origins"):
            lost(Control(one.store), Control(other.store))
