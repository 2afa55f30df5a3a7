"""`holdfast backup` and `holdfast restore`."""

from __future__ import annotations

import json

import pytest

from holdfast import Holdfast

pytestmark = pytest.mark.no_tables


def test_backup_and_restore_say_what_they_did(shell, tmp_path):
    url, file, other = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "copy.db", f"sqlite:///{tmp_path}/other.db"
    with Holdfast(url) as app:
        app.remote("shop.pay").enqueue(1)
    made = shell("backup", "--url", url, file)
    assert made.exit_code == 0
    assert made.stdout.startswith(f"backed up {url} to {file} (")
    assert shell("backup", "--url", url, file).exit_code == 2
    restored = shell("restore", file, other, "--paused")
    assert restored.exit_code == 0
    assert "1 ready" in restored.stdout
    assert "then resume the queues" in restored.stdout
    assert "default" in shell("queues", "--url", other).stdout
    assert json.loads(shell("queues", "--url", other, "--json").stdout)[0]["paused"] is True


def test_lost_outcomes_are_listed(shell, tmp_path):
    former, file, new = f"sqlite:///{tmp_path}/jobs.db", tmp_path / "copy.db", f"sqlite:///{tmp_path}/other.db"
    with Holdfast(former) as app:
        app.store.prepare()
        shell("backup", "--url", former, file)
        run = app.remote("shop.pay").options(key="order-1").enqueue(1)
    shell("restore", file, new)
    listed = shell("lost", former, "--url", new, "--since", "1h")
    assert listed.exit_code == 1
    assert all(text in listed.stdout for text in (str(run.id), "shop.pay", "missing"))
    found = json.loads(shell("lost", former, "--url", new, "--since", "1h", "--json").stdout)
    assert [(each["id"], each["what"], each["key"]) for each in found] == [(str(run.id), "missing", "order-1")]
    assert shell("lost", former, "--url", former, "--since", "1h").exit_code == 0
