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
