"""The command line: what can be asked for, and what is refused."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from benchmarks.enqueue import Enqueue
from benchmarks.graphs import Graphs
from benchmarks.growth import Growth
from benchmarks.jobs import Jobs
from benchmarks.latency import Latency
from benchmarks.limits import Limits
from benchmarks.measure import Measure
from benchmarks.memory import Memory
from benchmarks.pages import Pages
from benchmarks.peers.catalog import PEERS
from benchmarks.steps import Steps
from benchmarks.sustained import Sustained

MEASURES: tuple[Measure, ...] = (
    Jobs(),
    Steps(),
    Latency(),
    Enqueue(),
    Graphs(),
    Limits(),
    Growth(),
    Sustained(),
    Memory(),
    Pages(),
)
REPETITIONS = 3
MOST_PEER_WORKERS = 2
AT_LEAST_ONE = ("reps", "count", "workers", "concurrency", "size", "minutes")
SHARED = ("postgres", "sqlite", "reps", "quick", "json", "profile")
EXAMPLES = """\
Examples:
  ./dev bench jobs
      on both databases, by one worker and by two, three repetitions
  ./dev bench jobs --postgres --workers 1 --peers raw,pgqueuer
      beside others, back to back, with what must be reached
  ./dev bench steps --sqlite --json steps.json
      the table, and all values in a file
  ./dev bench jobs --sqlite --workers 1 --profile jobs.svg
      also where the processor's time goes
  ./dev bench growth --postgres postgresql://me@host/postgres
      on a server that is there already
  ./dev bench all --quick
      small sizes: does everything work?
  ./dev bench all --peers --publish
      everything, into docs/benchmarks.md; takes hours
  ./dev bench publish jobs.json steps.json
      the same from what was found before
"""


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"bench: {message}; see --help\n")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """`measure` is what to measure, None for everything; `files` are what to publish, None to measure."""
    parser = Parser(prog="./dev bench", description="Measure Holdfast.", epilog=EXAMPLES, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    verbs = parser.add_subparsers(required=True, metavar="MEASURE", dest="name")
    for measure in MEASURES:
        own = verbs.add_parser(
            measure.name, help=measure.purpose, description=f"Measures {measure.purpose}.", allow_abbrev=False
        )
        _add_shared(own)
        own.add_argument("--count", type=int, help=f"runs in a repetition (default: {measure.count:,})")
        if measure.has_peers:
            _add_peers(own)
        measure.arguments(own)
        own.set_defaults(measure=measure, files=None)
    _add_all(verbs)
    publish = verbs.add_parser("publish", help="write what was found into docs/benchmarks.md", allow_abbrev=False)
    publish.add_argument("files", nargs="+", type=Path, metavar="FILE", help="written by --json")
    options = parser.parse_args(arguments)
    if options.files is None:
        _complete(options, parser)
    return options


def options_of(measure: Measure, given: argparse.Namespace) -> argparse.Namespace:
    """What `all` means for one measure: its own defaults, and what was said for all of them."""
    if given.measure is not None:
        return given
    parser = Parser(allow_abbrev=False)
    parser.add_argument("--count", type=int)
    measure.arguments(parser)
    own = parser.parse_args([])
    own.measure = measure
    for name in SHARED:
        setattr(own, name, getattr(given, name))
    own.peers = given.peers if measure.has_peers else []
    _complete(own, parser)
    return own


def _add_shared(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--postgres", nargs="?", const="", metavar="URL", help="on PostgreSQL; without a URL on a server of our own")
    add("--sqlite", action="store_true", help="on SQLite (default: on both databases)")
    add("--reps", type=int, help=f"repetitions (default: {REPETITIONS}; 1 with --quick)")
    add("--quick", action="store_true", help="small sizes: to see that it works, not to publish")
    add("--json", nargs="?", const="-", metavar="FILE", help="JSON into a file; without one instead of the table")
    add("--profile", type=Path, metavar="FILE", help="write a flame graph (SVG) of our processes")


def _add_peers(parser: argparse.ArgumentParser) -> None:
    told = f"others to measure as well (default: all of {', '.join(PEERS)})"
    parser.add_argument("--peers", nargs="?", type=_peers, const=list(PEERS), default=[], metavar="NAMES", help=told)


def _add_all(verbs: argparse._SubParsersAction[Parser]) -> None:
    told = "all of these, one after the other"
    everything = verbs.add_parser("all", help=told, description=f"Measures {told}.", allow_abbrev=False)
    _add_shared(everything)
    _add_peers(everything)
    everything.add_argument("--publish", action="store_true", help="write the figures into docs/benchmarks.md")
    everything.set_defaults(measure=None, files=None)


def _peers(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("give at least one name, such as raw")
    if unknown := [name for name in names if name not in PEERS]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; there are: {', '.join(PEERS)}")
    return list(dict.fromkeys(names))


def _complete(options: argparse.Namespace, parser: Parser) -> None:
    """Fill in what wasn't said, and refuse what can't be."""
    measure: Measure | None = options.measure
    if options.postgres is None and not options.sqlite:
        options.postgres, options.sqlite = "", True
    if options.reps is None:
        options.reps = 1 if options.quick else REPETITIONS
    if measure is not None and options.count is None:
        options.count = measure.quick_count if options.quick else measure.count
    if not hasattr(options, "peers"):
        options.peers = []
    for name in AT_LEAST_ONE:
        value = getattr(options, name, None)
        if isinstance(value, int) and value < 1:
            parser.error(f"--{name} must be at least 1, but is {value}")
    workers = getattr(options, "workers", 1)
    if options.peers and isinstance(workers, list) and max(workers) > MOST_PEER_WORKERS:
        parser.error(f"--peers are measured with at most {MOST_PEER_WORKERS} workers")
    for name in ("json", "profile"):
        path = getattr(options, name)
        if path not in (None, "-") and not Path(path).parent.is_dir():
            parser.error(f"--{name}: there is no folder {Path(path).parent}")
