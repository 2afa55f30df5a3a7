"""What a type checker sees of durable functions: the examples are checked by mypy, as an author's code would be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
EXAMPLES = sorted((ROOT / "tests" / "typing").glob("*.py"))


def checked(path: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """mypy's word on a file; with no settings but its own strict ones, and none of ours."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "--cache-dir", str(cache)]
    environment = {**os.environ, "MYPYPATH": str(ROOT / "src")}
    return subprocess.run([*command, str(path)], capture_output=True, text=True, env=environment, cwd=cache)


@pytest.mark.parametrize("examples", EXAMPLES, ids=lambda path: path.stem)
def test_a_strict_checker_sees_the_types_of_steps_children_and_waits(examples, tmp_path):
    answer = checked(examples, tmp_path)
    assert (answer.stdout.strip(), answer.returncode) == ("Success: no issues found in 1 source file", 0)
