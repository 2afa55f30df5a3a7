"""The command: reads the options, opens the databases, takes all cases round by round, and reports."""

from __future__ import annotations

import argparse
import signal
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NoReturn

from holdfast.bench.graphs import Graphs
from holdfast.bench.growth import Growth
from holdfast.bench.hosts import Host, PostgresHost, Unusable, about, open_hosts
from holdfast.bench.jobs import Jobs
from holdfast.bench.latency import Latency
from holdfast.bench.limits import Limits
from holdfast.bench.measure import Case, Failed, Figures, Measure, note
from holdfast.bench.peers import Peers, Result
from holdfast.bench.report import Report
from holdfast.bench.steps import Steps

MEASURES: tuple[Measure, ...] = (Jobs(), Steps(), Graphs(), Latency(), Growth(), Limits())
REPETITIONS = 3
MOST_PEER_WORKERS = 2
AT_LEAST_ONE = ("reps", "count", "workers", "concurrency", "size")
EXAMPLES = """\
examples:
  ./dev bench jobs                           both databases, three repetitions
  ./dev bench jobs --peers raw               beside the hand-written SQL, back to back
  ./dev bench steps --peers raw              durable steps, 500 runs at once and one alone
  ./dev bench graphs                         nodes a second, and whether large graphs are as fast as small ones
  ./dev bench latency --sqlite --json        one database, all values
  ./dev bench limits --workers 2             what limits cost
  ./dev bench growth --postgres postgresql://me@host/postgres --size 200000
"""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"bench: {message}; see --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with ExitStack() as stack:
            report = run(options, stack)
    except Unusable as error:
        note(f"bench: {error}")
        return 1
    except KeyboardInterrupt:
        note("bench: stopped")
        return 130
    print(report.as_json() if options.json else report.as_table())
    return 1 if report.failed else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(prog="./dev bench", description="Measures Holdfast.", epilog=EXAMPLES, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    measures = parser.add_subparsers(required=True, metavar="MEASURE", dest="name")
    for measure in MEASURES:
        own = measures.add_parser(
            measure.name, help=measure.purpose, description=f"Measures {measure.purpose}.", allow_abbrev=False
        )
        _add_common(own, measure)
        measure.arguments(own)
        own.set_defaults(measure=measure)
    options = parser.parse_args(arguments)
    _complete(options, parser)
    return options


def _add_common(parser: argparse.ArgumentParser, measure: Measure) -> None:
    add = parser.add_argument
    add("--postgres", nargs="?", const="", metavar="URL", help="on PostgreSQL; without a URL on a server of our own")
    add("--sqlite", action="store_true", help="on SQLite (default: on both databases)")
    add("--reps", type=int, help=f"repetitions (default: {REPETITIONS}; 1 with --quick)")
    add("--count", type=int, help=f"runs in a repetition (default: {measure.count:,})")
    add("--quick", action="store_true", help="small sizes: to see that it works, not to publish")
    add("--json", action="store_true", help="print JSON instead of a table")
    if measure.has_peers:
        add("--peers", type=_names, default=[], metavar="NAMES", help="others to measure as well, such as raw,pgqueuer")
    else:
        parser.set_defaults(peers=[])


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("give at least one name, such as raw")
    return names


def _complete(options: argparse.Namespace, parser: Parser) -> None:
    """Fill in what wasn't said, and refuse what can't be."""
    measure: Measure = options.measure
    if options.postgres is None and not options.sqlite:
        options.postgres, options.sqlite = "", True
    if options.reps is None:
        options.reps = 1 if options.quick else REPETITIONS
    if options.count is None:
        options.count = measure.quick_count if options.quick else measure.count
    for name in AT_LEAST_ONE:
        value = getattr(options, name, None)
        if value is not None and value < 1:
            parser.error(f"--{name} must be at least 1, but is {value}")
    if options.peers and getattr(options, "workers", 1) > MOST_PEER_WORKERS:
        parser.error(f"--peers are measured with at most {MOST_PEER_WORKERS} workers")


def run(options: argparse.Namespace, stack: ExitStack) -> Report:
    """Everything from the first database to the last repetition."""
    measure: Measure = options.measure
    if options.peers:
        _peers(options, None).check()
    hosts = open_hosts(options.postgres, options.sqlite, stack)
    common = {"reps": options.reps, "quick": options.quick, "peers": options.peers}
    report = Report(measure, about(hosts), {**measure.settings(options), **common})
    cases = [case for host in hosts for case in measure.cases(host, options, stack)]
    server = next((host.url for host in hosts if isinstance(host, PostgresHost)), None)
    peers = _peers(options, server) if options.peers else None
    for number in range(1, options.reps + 1):
        label = f"[{number}/{options.reps}] {measure.name}"
        if peers is not None:
            _take_peers(peers, hosts, report, label)
        for case in cases:
            if not report.has_failed(case.database, case.subject):
                _take(case, report, label)
    return report


def _peers(options: argparse.Namespace, server: str | None) -> Peers:
    workers = getattr(options, "workers", 1)
    return Peers(options.measure.name, options.peers, server, workers=workers, quick=options.quick)


def _take(case: Case, report: Report, label: str) -> None:
    """One repetition of ours; what goes wrong is reported, and the others go on."""
    try:
        figures = case.take()
    except Failed as failure:
        why = str(failure)
    except Exception as error:
        traceback.print_exc()
        why = f"{type(error).__name__}: {error}"
    else:
        report.add(case.database, case.subject, figures)
        note(f"{label}: {case.subject}, {case.database}: {_shown(figures)}")
        return
    report.fail(case.database, case.subject, why)
    note(f"{label}: {case.subject}, {case.database}: FAILED: {why}")


def _take_peers(peers: Peers, hosts: list[Host], report: Report, label: str) -> None:
    """One repetition of the others, of which those on the chosen databases count."""
    note(f"{label}: the peers")
    try:
        results: list[Result] = peers.take()
    except Failed as failure:
        report.fail(PostgresHost.name, "peers", str(failure))
        return
    wanted = {host.name for host in hosts}
    for result in results:
        if result.database not in wanted:
            continue
        if result.failure:
            report.fail(result.database, result.subject, result.failure)
        report.add(result.database, result.subject, result.figures, result.details)


def _shown(figures: Figures) -> str:
    return ", ".join(f"{name} {value:,.1f}".strip() for name, value in figures.items())
