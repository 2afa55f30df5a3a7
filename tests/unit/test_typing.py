"""Types of durable functions: mypy checks the examples like the code of a user."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = sorted((ROOT / "tests" / "typing").glob("*.py"))


def test_a_strict_checker_sees_the_types_of_steps_children_and_waits(tmp_path):
    """mypy runs in strict mode, without the settings of this project."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "--cache-dir", str(tmp_path)]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    answer = subprocess.run([*command, *EXAMPLES], capture_output=True, text=True, env=environment, cwd=tmp_path)
    said = f"Success: no issues found in {len(EXAMPLES)} source files"
    assert (answer.stdout.strip(), answer.returncode) == (said, 0)
