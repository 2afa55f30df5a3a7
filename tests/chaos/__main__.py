"""The command `./dev chaos`."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from tests.chaos.cluster import ClusterHouse
from tests.chaos.houses import House, PostgresHouse, SqliteHouse
from tests.chaos.report import Report
from tests.chaos.soak import soak
from tests.chaos.trial import Setting, Trial

EPILOG = """\
Ctrl-C ends the faults early: what was begun comes to rest, and the verdict is on that; once more ends the wait.
The seed chooses faults and victims; how processes race is never the same twice.

exit code: 0 when the verdict is good, 1 when it isn't, 130 when there is none

examples:
  ./dev chaos --minutes 10 --postgres
  ./dev chaos --minutes 10 --sqlite --json result.json
  ./dev chaos --failover 20
  ./dev chaos --soak --minutes 30 --postgres
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    try:
        if options.soak:
            with folder(options.keep) as place:
                return soak(not options.sqlite, options.minutes * 60, place, options.json, note)
        return trial(options, seed)
    except KeyboardInterrupt:
        note("stopped without a verdict")
        return 130


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev chaos",
        description="Kill, stop and cut off workers and their database while tasks of all kinds run, some of which harm"
        " their worker; then report what was lost, duplicated, stuck, written by workers that had been given up, or"
        " failed for what another run did.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--postgres", action="store_true", help="a PostgreSQL server of its own (default)")
    where.add_argument("--sqlite", action="store_true", help="a SQLite file")
    where.add_argument(
        "--failover",
        type=_count,
        nargs="?",
        const=20,
        metavar="N",
        help="a PostgreSQL server with a synchronous standby; N times (default: 20) the primary is killed and the"
        " standby promoted, and nothing else happens",
    )
    parser.add_argument(
        "--soak",
        action="store_true",
        help="no faults: one worker at half of its speed, and whether memory, latency and tables stay what they are",
    )
    parser.add_argument("--minutes", type=_minutes, default=1.0, help="how long (default: 1)")
    parser.add_argument("--seed", type=int, help="for the choice of faults (default: another one each time, and told)")
    parser.add_argument("--workers", type=int, default=4, help="worker processes (default: 4)")
    parser.add_argument("--lease", type=float, default=3.0, help="seconds (default: 3)")
    parser.add_argument("--version", type=int, help="of PostgreSQL, where there are several (default: the newest)")
    parser.add_argument("--json", metavar="FILE", help="write the result there too; - prints it instead of the text")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="keep ledger and logs there, in a new folder")
    options = parser.parse_args(arguments)
    if options.soak and options.failover is not None:
        parser.error("--soak has no faults: leave --failover out")
    if options.workers < 2:
        parser.error("--workers must be at least 2: somebody has to take over")
    return options


def _count(text: str) -> int:
    number = int(text)
    if not 0 < number <= 1000:
        raise argparse.ArgumentTypeError("give a number from 1 to 1000")
    return number


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes <= 24 * 60:
        raise argparse.ArgumentTypeError("give more than 0 and at most a day")
    return minutes


def trial(options: argparse.Namespace, seed: int) -> int:
    seconds = options.minutes * 60 if options.failover is None else 60.0 * options.failover
    calm = options.failover is not None
    setting = Setting(seconds, seed, workers=options.workers, lease=options.lease, worker_faults=not calm)
    with folder(options.keep) as place:
        note(f"seed {seed}, in {place}")
        with closing(open_house(options, place)) as house:
            outcome = Trial(house, place, setting, note).run()
            report = Report(house.about(), setting, outcome)
    tell(report, options.json)
    return 0 if report.good else 1


@contextmanager
def folder(keep: Path | None) -> Iterator[Path]:
    """Reachable for the user who runs PostgreSQL; gone at the end unless it is to be kept."""
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-chaos-", ignore_cleanup_errors=True) as made:
        Path(made).chmod(0o755)
        yield Path(made)


def open_house(options: argparse.Namespace, place: Path) -> House:
    if options.failover is not None:
        return ClusterHouse(place, options.failover)
    return SqliteHouse(place) if options.sqlite else PostgresHouse(place, options.version)


def tell(report: Report, json: str | None) -> None:
    if json not in (None, "-"):
        Path(str(json)).write_text(report.as_json() + "\n")
    print(report.as_json() if json == "-" else report.as_text())  # noqa: T201


def note(text: str) -> None:
    print(f"chaos: {text}", file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
