"""Plant bugs one at a time and report what caught each: `python -m tests.proof.planted`, or `--bug NAME`.

Each bug gets its own process. The model and the simulation run there until they catch the bug or reach their limit; or
the test runs that has to catch it.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.proof.bugs import BY_NAME, Bug
from tests.proof.machine import StoreMachine
from tests.proof.simulate import run_seed
from tests.support.store_harness import StoreHarness

ROOT = Path(__file__).resolve().parents[2]
MAX_EXAMPLES = 250
MAX_SEEDS = 400
FIRST_SEEDS = {
    "claim-forgotten": 25, "claim-stalled": 22, "renew-stalled": 33,
    "message-skipped": 7, "next-skipped": 59, "ask-overtaken": 48, "answer-mixed": 4,
    "topic-repeated": 304, "chunk-repeated": 73, "commit-claim-stalled": 38,
}  # fmt: skip
"""Seeds that caught these bugs before, tried first to save time."""
MODEL_SETTINGS = settings(
    deadline=None, database=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate], derandomize=True,
    max_examples=MAX_EXAMPLES, stateful_step_count=40,
)  # fmt: skip


class Caught(NamedTuple):
    """What caught a bug: an example of the model, a seed of the simulation or a test; with the message."""

    bug: str
    example: int | None
    seed: int | None
    said: str
    test: str | None = None

    @property
    def by(self) -> str | None:
        if self.example is not None:
            return f"the model, example {self.example}"
        if self.seed is not None:
            return f"the simulation, seed {self.seed}"
        return None if self.test is None else f"`{self.test}`"


def catch(bug: Bug) -> Caught:
    """Plant the bug and look for it in a process without stores; run the simulation only if the model misses it."""
    with bug.planted():
        if bug.test is not None:
            failed, said = catch_with_test(bug.test)
            return Caught(bug.name, None, None, said, bug.test if failed else None)
        example, said = catch_with_model() if bug.in_the_model else (None, "")
        if example is not None:
            return Caught(bug.name, example, None, said)
        seed, said = catch_with_simulation(FIRST_SEEDS.get(bug.name, 0), local_clients=bug.local_clients)
    return Caught(bug.name, None, seed, said)


def catch_with_model() -> tuple[int | None, str]:
    harness = StoreHarness("sqlite:///:memory:")
    count = 0

    class Counted(StoreMachine):
        harnesses = (harness,)

        def __init__(self) -> None:
            nonlocal count
            count += 1
            super().__init__()

    try:
        run_state_machine_as_test(Counted, settings=MODEL_SETTINGS)
    except Exception as error:
        return count, _first_line(str(error) or repr(error))
    finally:
        with suppress(Exception):
            harness.close()
    return None, ""


def catch_with_simulation(first: int = 0, *, local_clients: bool = False) -> tuple[int | None, str]:
    for seed in (first, *range(MAX_SEEDS)):
        broken = run_seed(seed, local_clients=local_clients).violation
        if broken:
            return seed, _first_line(broken)
    return None, ""


def catch_with_test(test: str) -> tuple[bool, str]:
    """Run a test in this process and return whether it failed, with the first failure."""
    output = io.StringIO()
    with redirect_stdout(output):
        code = pytest.main([str(ROOT / test), "-x", "-q", "-p", "no:cacheprovider", "-n", "0", "--rootdir", str(ROOT)])
    assert code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), output.getvalue()
    failed = [line for line in output.getvalue().splitlines() if line.startswith("FAILED")]
    return code == pytest.ExitCode.TESTS_FAILED, _first_line(failed[0]) if failed else ""


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:160]


def catch_apart(name: str) -> Caught:
    """Run `catch` in its own process."""
    command = [sys.executable, "-m", "tests.proof.planted", "--bug", name, "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    return Caught(**json.loads(done.stdout))


def report(caught: Iterable[Caught]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield "| bug | what is wrong | caught by |"
    yield "| --- | --- | --- |"
    count = found = 0
    for one in caught:
        count += 1
        found += one.by is not None
        yield f"| `{one.bug}` | {BY_NAME[one.bug].what} | {one.by or 'not caught'} |"
    yield ""
    yield f"{found} of {count} are caught."


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.proof.planted", description=__doc__.split("\n")[0])
    parser.add_argument("--bug", choices=sorted(BY_NAME), help="run only this bug, in this process")
    parser.add_argument("--json", action="store_true", help="with --bug: print JSON")
    given = parser.parse_args(argv)
    if given.bug is None:
        with ThreadPoolExecutor(2) as pool:
            for line in report(pool.map(catch_apart, BY_NAME)):
                print(line, flush=True)  # noqa: T201
        return 0
    caught = catch(BY_NAME[given.bug])
    print(json.dumps(caught._asdict()) if given.json else caught)  # noqa: T201
    return 0 if caught.by else 1


if __name__ == "__main__":
    sys.exit(main())
