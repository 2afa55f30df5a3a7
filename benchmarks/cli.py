"""The command line: parse options, run the benchmarks and report the results."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

from benchmarks import profiler
from benchmarks.benchmark import HOLDFAST, Benchmark, Case, MeasurementFailed, Metrics, log
from benchmarks.charts import draw_flame_graph
from benchmarks.databases import Backend, BenchmarkError, describe_environment, open_backends
from benchmarks.peers.catalog import PEERS
from benchmarks.peers.runner import Peers
from benchmarks.publish import publish, read_results
from benchmarks.report import Report, Results
from benchmarks.suite import BENCHMARKS

DEFAULT_REPETITIONS = 3
MAX_PEER_WORKERS = 2
POSITIVE_OPTIONS = ("reps", "count", "workers", "concurrency", "size", "minutes", "shrink")
SHARED_OPTIONS = ("postgres", "sqlite", "reps", "quick", "json", "profile")
EXAMPLES = """\
examples:
  ./dev bench jobs
      on both databases, with one worker and with two, three repetitions
  ./dev bench jobs --postgres --workers 1 --peers raw,pgqueuer
      next to other libraries, with the targets
  ./dev bench steps --sqlite --json steps.json
      print the table and write all values to a file
  ./dev bench jobs --sqlite --workers 1 --profile jobs.svg
      also write a flame graph
  ./dev bench growth --postgres postgresql://me@host/postgres
      on an existing server
  ./dev bench all --quick
      small sizes, to check that everything works
  ./dev bench all --peers --publish
      run everything and update docs/benchmarks.md; takes hours
  ./dev bench publish jobs.json steps.json
      update docs/benchmarks.md from results of --json
"""


class Parser(argparse.ArgumentParser):
    """Reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"bench: {message}; see --help\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 1 if a measurement failed, 130 after Ctrl-C or SIGTERM."""
    options = parse_arguments(arguments)
    previous_handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if options.files is not None:
            return _publish([read_results(file) for file in options.files])
        with ExitStack() as stack:
            results = run(options, stack)
        return _report(results, options)
    except BenchmarkError as error:
        log(f"bench: {error}")
        return 1
    except KeyboardInterrupt:
        log("bench: interrupted")
        return 130
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


# Options


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line. `benchmark` is None for all of them; `files` is None unless results are published."""
    parser = Parser(prog="./dev bench", description="Measure Holdfast.", epilog=EXAMPLES, allow_abbrev=False)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    commands = parser.add_subparsers(required=True, metavar="BENCHMARK", dest="name")
    for benchmark in BENCHMARKS:
        own = commands.add_parser(
            benchmark.name, help=benchmark.purpose, description=f"Measure {benchmark.purpose}.", allow_abbrev=False
        )
        _add_shared_options(own)
        own.add_argument("--count", type=int, help=f"runs per repetition (default: {benchmark.count:,})")
        if benchmark.has_peers:
            _add_peers_option(own)
        benchmark.add_arguments(own)
        own.set_defaults(benchmark=benchmark, files=None)
    everything = commands.add_parser(
        "all", help="run all benchmarks", description="Run all benchmarks.", allow_abbrev=False
    )
    _add_shared_options(everything)
    _add_peers_option(everything)
    everything.add_argument("--publish", action="store_true", help="write the results into docs/benchmarks.md")
    everything.set_defaults(benchmark=None, files=None)
    publish = commands.add_parser("publish", help="write results into docs/benchmarks.md", allow_abbrev=False)
    publish.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a file that --json wrote")
    options = parser.parse_args(arguments)
    if options.files is None:
        _complete(options, parser)
    return options


def options_for(benchmark: Benchmark, given: argparse.Namespace) -> argparse.Namespace:
    """Return the options of one benchmark; for `all`, its own defaults and the shared options."""
    if given.benchmark is not None:
        return given
    parser = Parser(allow_abbrev=False)
    parser.add_argument("--count", type=int)
    benchmark.add_arguments(parser)
    own = parser.parse_args([])
    own.benchmark = benchmark
    for name in SHARED_OPTIONS:
        setattr(own, name, getattr(given, name))
    own.peers = given.peers if benchmark.has_peers else []
    _complete(own, parser)
    return own


def _add_shared_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--postgres", nargs="?", const="", metavar="URL", help="use PostgreSQL; without a URL, a temporary server")
    add("--sqlite", action="store_true", help="use SQLite (default: both databases)")
    add("--reps", type=int, help=f"repetitions (default: {DEFAULT_REPETITIONS}; 1 with --quick)")
    add("--quick", action="store_true", help="use small sizes, to check that it works; results can't be published")
    add("--json", nargs="?", const="-", metavar="FILE", help="write JSON to a file, or print it instead of the table")
    add("--profile", type=Path, metavar="FILE", help="write a flame graph (SVG) of Holdfast's processes")


def _add_peers_option(parser: argparse.ArgumentParser) -> None:
    help_text = f"also measure these libraries (default: all of {', '.join(PEERS)})"
    parser.add_argument(
        "--peers", nargs="?", type=_parse_peers, const=list(PEERS), default=[], metavar="NAMES", help=help_text
    )


def _parse_peers(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("expected at least one name, such as raw")
    if unknown := [name for name in names if name not in PEERS]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; choose from: {', '.join(PEERS)}")
    return list(dict.fromkeys(names))


def _complete(options: argparse.Namespace, parser: Parser) -> None:
    """Fill in defaults and reject invalid values."""
    benchmark: Benchmark | None = options.benchmark
    if options.postgres is None and not options.sqlite:
        options.postgres, options.sqlite = "", True
    if options.reps is None:
        options.reps = 1 if options.quick else DEFAULT_REPETITIONS
    if benchmark is not None and options.count is None:
        options.count = benchmark.quick_count if options.quick else benchmark.count
    if not hasattr(options, "peers"):
        options.peers = []
    for name in POSITIVE_OPTIONS:
        value = getattr(options, name, None)
        if isinstance(value, int) and value < 1:
            parser.error(f"--{name} must be at least 1, but is {value}")
    workers = getattr(options, "workers", 1)
    if options.peers and isinstance(workers, list) and max(workers) > MAX_PEER_WORKERS:
        parser.error(f"--peers supports at most {MAX_PEER_WORKERS} workers")
    for name in ("json", "profile"):
        path = getattr(options, name)
        if path not in (None, "-") and not Path(path).parent.is_dir():
            parser.error(f"--{name}: folder {Path(path).parent} does not exist")


# Execution


def run(options: argparse.Namespace, stack: ExitStack) -> Results:
    """Open the databases and run the selected benchmarks."""
    peers = Peers(options.peers) if options.peers else None
    backends = open_backends(options.postgres, options.sqlite, stack)
    results = Results(describe_environment(backends))
    if options.profile:
        _enable_profiling(options.profile, stack)
    for benchmark in BENCHMARKS if options.benchmark is None else [options.benchmark]:
        own = options_for(benchmark, options)
        with ExitStack() as inner:
            results.reports.append(_run_benchmark(benchmark, backends, own, peers if own.peers else None, inner))
    return results


def _run_benchmark(
    benchmark: Benchmark,
    backends: Sequence[Backend],
    options: argparse.Namespace,
    peers: Peers | None,
    stack: ExitStack,
) -> Report:
    """Run all cases once per repetition, so that slow minutes of the machine affect all of them alike."""
    common = {"reps": options.reps, "quick": options.quick, "profiled": options.profile is not None}
    report = Report(benchmark, {**benchmark.settings(options), **common})
    cases = [case for backend in backends for case in _cases(benchmark, backend, options, peers, stack)]
    for name, why in peers.missing(benchmark, cases).items() if peers else ():
        report.skip_peer(name, why)
    for number in range(1, options.reps + 1):
        for case in cases:
            if not report.has_failed(case.database, case.subject, case.variant):
                _measure(case, report, f"[{number}/{options.reps}] {benchmark.name}: {case.title}")
    return report


def _cases(
    benchmark: Benchmark, backend: Backend, options: argparse.Namespace, peers: Peers | None, stack: ExitStack
) -> list[Case]:
    """Return the cases in order: by variant, peers first, Holdfast last."""
    ours = list(benchmark.cases(backend, options, stack))
    if peers is None:
        return ours
    variants = list(dict.fromkeys(case.variant for case in ours))
    theirs = peers.cases(benchmark, backend, set(variants), options.count / benchmark.count, stack)
    return sorted([*theirs, *ours], key=lambda case: (variants.index(case.variant), case.subject == HOLDFAST))


def _measure(case: Case, report: Report, label: str) -> None:
    """Measure one repetition. A failure is reported, and the other cases continue."""
    try:
        metrics = case.measure()
    except MeasurementFailed as failure:
        why = str(failure)
    except Exception as error:
        traceback.print_exc()
        why = f"{type(error).__name__}: {error}"
    else:
        report.add(case.database, case.subject, metrics, case.details)
        log(f"{label}: {_format_metrics(metrics)}")
        return
    report.add_failure(case.database, case.subject, why, case.variant)
    log(f"{label}: FAILED: {why}")


def _format_metrics(metrics: Metrics) -> str:
    return ", ".join(f"{name} {value:,.1f}".strip() for name, value in metrics.items())


def _enable_profiling(path: Path, stack: ExitStack) -> None:
    """Let child processes sample themselves, and draw a flame graph at the end."""
    temporary = tempfile.TemporaryDirectory(prefix="holdfast-bench-", ignore_cleanup_errors=True)
    folder = Path(stack.enter_context(temporary))

    def draw() -> None:
        del os.environ[profiler.VARIABLE]
        if sys.exc_info()[0] is None:
            path.write_text(draw_flame_graph(profiler.read_stacks(folder), f"./dev bench {path.stem}"))
            log(f"bench: wrote {path}")

    os.environ[profiler.VARIABLE] = str(folder)
    stack.callback(draw)


def _report(results: Results, options: argparse.Namespace) -> int:
    if options.json not in (None, "-"):
        Path(options.json).write_text(results.as_json() + "\n")
    print(results.as_json() if options.json == "-" else results.as_table())
    if getattr(options, "publish", False):
        _publish([results.as_data()])
    return 1 if results.failed else 0


def _publish(results: Sequence[dict[str, object]]) -> int:
    for path in publish(results):
        log(f"bench: wrote {path}")
    return 0
