"""How many files a reader opens who follows one run through the code."""

from __future__ import annotations

import pytest

from tests.support.files_opened import describe, files_of, measure

REPEATS = 10


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    return measure(tmp_path_factory.mktemp("files"), REPEATS)


@pytest.mark.parametrize(("run", "allowed"), [("job", 22), ("durable function with one step", 30)])
def test_a_warm_run_passes_through_few_files(paths, run, allowed):
    """Code that only a special case needs stays off the common path, and what is read together is in one file."""
    files, _ = files_of(paths[run])
    assert len(files) <= allowed, describe(run, paths[run], with_functions=True)
    assert {"engine/loops/claimer.py", "engine/runner.py", "engine/loops/committer.py"} <= set(files)
