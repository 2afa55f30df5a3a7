"""What README and docs show runs as it is printed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"^```python(?P<note>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [page for page in sorted(ROOT.glob("docs/*.md")) if BLOCK.search(page.read_text())]
HOLDFAST = Path(sys.executable).with_name("holdfast")


def blocks(page: Path) -> list[str]:
    """The Python of a page, but for what says `notest`."""
    return [match["code"] for match in BLOCK.finditer(page.read_text()) if "notest" not in match["note"]]


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_examples_of_a_page_are_one_program_that_runs(page, tmp_path):
    script = tmp_path / "shop.py"
    script.write_text("\n".join(blocks(page)))
    outcome = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=60
    )
    assert (outcome.returncode, outcome.stderr) == (0, "")


def test_the_first_task_of_the_readme_runs_as_printed(tmp_path):
    app, send = blocks(ROOT / "README.md")
    (tmp_path / "app.py").write_text(app)
    (tmp_path / "send.py").write_text(send)
    worker = subprocess.Popen(
        [HOLDFAST, "worker", "--app", "app:app"], cwd=tmp_path, env=clean_environment(), stderr=subprocess.DEVNULL
    )
    try:
        outcome = subprocess.run(
            [sys.executable, "send.py"],
            cwd=tmp_path,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )
    finally:
        worker.send_signal(signal.SIGTERM)
        code = worker.wait(60)
    assert (outcome.returncode, outcome.stderr) == (0, "")
    assert outcome.stdout.splitlines()[-1] == "Hello, Ada!"
    assert code == 0
