"""What a type checker sees of durable functions: the examples are checked by mypy, as an author's code would be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = sorted((ROOT / "tests" / "typing").glob("*.py"))


def test_a_strict_checker_sees_the_types_of_steps_children_and_waits(tmp_path):
    """With no settings but its own strict ones, and none of ours."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "--cache-dir", str(tmp_path)]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    answer = subprocess.run([*command, *EXAMPLES], capture_output=True, text=True, env=environment, cwd=tmp_path)
    said = f"Success: no issues found in {len(EXAMPLES)} source files"
    assert (answer.stdout.strip(), answer.returncode) == (said, 0)
