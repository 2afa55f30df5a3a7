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

from tests.chaos.chaos_run import ChaosConfig, ChaosRun
from tests.chaos.cluster import Cluster, FailoverDatabase
from tests.chaos.databases import ChaosDatabase, PostgresDatabase, SqliteDatabase
from tests.chaos.hosts import HostsDatabase
from tests.chaos.hosts import unavailable as hosts_unavailable
from tests.chaos.patroni import PatroniDatabase
from tests.chaos.patroni import unavailable as patroni_unavailable
from tests.chaos.report import Report
from tests.chaos.soak import soak

MAX_FAILOVER_S = 120.0
EPILOG = """\
Ctrl-C stops the faults early, waits for all runs to finish and judges the result; a second Ctrl-C stops waiting.
The seed determines faults and victims, but not how processes race.

exit code: 0 if the verdict is good, 1 if it is bad, 130 if there is none

examples:
  ./dev chaos --minutes 10 --postgres
  ./dev chaos --minutes 10 --sqlite --json result.json
  ./dev chaos --failover 20
  PATRONI=~/patroni/bin/patroni ./dev chaos --patroni 20
  ./dev chaos --hosts 8 --workers 16 --minutes 10
  ./dev chaos --soak --minutes 30 --postgres
"""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    try:
        if options.soak:
            with folder(options.keep) as path:
                return soak(not options.sqlite, options.minutes * 60, path, options.json, log)
        return run_chaos(options, seed)
    except KeyboardInterrupt:
        log("interrupted without a verdict")
        return 130


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="./dev chaos",
        description="Kill, freeze and disconnect workers and their database under load, with tasks that harm their"
        " worker among others. Then report lost, duplicated and stuck work, stale writes, and wrongly failed runs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--postgres", action="store_true", help="use a temporary PostgreSQL server (default)")
    where.add_argument("--sqlite", action="store_true", help="use a SQLite file")
    where.add_argument(
        "--failover",
        type=_count,
        nargs="?",
        const=20,
        metavar="N",
        help="use PostgreSQL with a synchronous standby; kill the primary and promote the standby N times (default:"
        " 20), without other faults",
    )
    where.add_argument(
        "--patroni",
        type=_count,
        metavar="N",
        help="use two servers under Patroni, with etcd and HAProxy; switch over and kill the primary N times in total",
    )
    where.add_argument(
        "--hosts",
        type=_count,
        metavar="N",
        help="run the workers on N hosts with clocks of their own, in network namespaces, and use PostgreSQL with a"
        " synchronous standby; partition and kill hosts, and fail over (Linux, as root, with iproute2 and libfaketime)",
    )
    parser.add_argument(
        "--soak",
        action="store_true",
        help="inject no faults; run one worker at half of its throughput and check that memory, latency and tables"
        " don't grow",
    )
    parser.add_argument("--minutes", type=_minutes, default=1.0, help="duration (default: 1)")
    parser.add_argument("--seed", type=int, help="seed of the faults (default: random; it is printed)")
    parser.add_argument("--workers", type=int, default=4, help="worker processes (default: 4)")
    parser.add_argument("--lease", type=float, default=3.0, help="lease in seconds (default: 3)")
    parser.add_argument("--version", type=int, help="version of PostgreSQL (default: the newest installed)")
    parser.add_argument("--json", metavar="FILE", help="also write the result to a file; - prints JSON instead of text")
    parser.add_argument("--keep", metavar="FOLDER", type=Path, help="keep ledger and logs in this new folder")
    options = parser.parse_args(arguments)
    if options.soak and (options.failover or options.patroni or options.hosts):
        parser.error("--soak has no faults: leave --failover, --patroni and --hosts out")
    if options.patroni is not None and (reason := patroni_unavailable()) is not None:
        parser.error(f"--patroni: {reason}")
    if options.hosts is not None and (reason := hosts_unavailable()) is not None:
        parser.error(f"--hosts: {reason}")
    if options.workers < 2:
        parser.error("--workers must be at least 2, so that one can take over")
    return options


def _count(text: str) -> int:
    number = int(text)
    if not 0 < number <= 1000:
        raise argparse.ArgumentTypeError("must be from 1 to 1000")
    return number


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes <= 24 * 60:
        raise argparse.ArgumentTypeError("must be more than 0 and at most a day")
    return minutes


def run_chaos(options: argparse.Namespace, seed: int) -> int:
    failovers = options.failover or options.patroni
    seconds = options.minutes * 60 if failovers is None else MAX_FAILOVER_S * failovers
    config = ChaosConfig(seconds, seed, workers=options.workers, lease=options.lease, worker_faults=failovers is None)
    with folder(options.keep) as path:
        log(f"seed {seed}, in {path}")
        with closing(open_database(options, path)) as database:
            outcome = ChaosRun(database, path, config, log).run()
            report = Report(database.describe(), config, outcome)
    print_report(report, options.json)
    return 0 if report.good else 1


@contextmanager
def folder(keep: Path | None) -> Iterator[Path]:
    """Create a folder that the PostgreSQL user can access; delete it at the end unless it is kept."""
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-chaos-", ignore_cleanup_errors=True) as temporary:
        Path(temporary).chmod(0o755)
        yield Path(temporary)


def open_database(options: argparse.Namespace, path: Path) -> ChaosDatabase:
    if options.hosts is not None:
        return HostsDatabase(path, options.hosts)
    if options.patroni is not None:
        return PatroniDatabase(path, options.patroni)
    if options.failover is not None:
        return FailoverDatabase(Cluster(path), options.failover)
    return SqliteDatabase(path) if options.sqlite else PostgresDatabase(path, options.version)


def print_report(report: Report, json: str | None) -> None:
    if json not in (None, "-"):
        Path(str(json)).write_text(report.as_json() + "\n")
    print(report.as_json() if json == "-" else report.as_text())  # noqa: T201


def log(text: str) -> None:
    print(f"chaos: {text}", file=sys.stderr, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
