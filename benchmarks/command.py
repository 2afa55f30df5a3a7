"""The command: opens the databases, takes all cases round by round, and tells what was found."""

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

from benchmarks import flame, profile
from benchmarks.hosts import Host, Unusable, about, open_hosts
from benchmarks.measure import OURS, Case, Failed, Figures, Measure, note
from benchmarks.options import MEASURES, options_of, parse
from benchmarks.peers.cases import Peers
from benchmarks.publish import publish, read
from benchmarks.report import Report
from benchmarks.results import Results


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if options.files is not None:
            return _publish_files(options.files)
        with ExitStack() as stack:
            results = run(options, stack)
        return _tell(results, options)
    except Unusable as error:
        note(f"bench: {error}")
        return 1
    except KeyboardInterrupt:
        note("bench: stopped")
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)


def _publish_files(files: Sequence[Path]) -> int:
    for path in publish([read(file) for file in files]):
        note(f"bench: wrote {path}")
    return 0


def _tell(results: Results, options: argparse.Namespace) -> int:
    if options.json not in (None, "-"):
        Path(options.json).write_text(results.as_json() + "\n")
    print(results.as_json() if options.json == "-" else results.as_table())
    if getattr(options, "publish", False):
        for path in publish([results.as_data()]):
            note(f"bench: wrote {path}")
    return 1 if results.failed else 0


def run(options: argparse.Namespace, stack: ExitStack) -> Results:
    """Everything from the first database to the last repetition."""
    peers = Peers(options.peers) if options.peers else None
    hosts = open_hosts(options.postgres, options.sqlite, stack)
    results = Results(about(hosts))
    if options.profile:
        _profile_into(options.profile, stack)
    for measure in MEASURES if options.measure is None else [options.measure]:
        own = options_of(measure, options)
        with ExitStack() as inner:
            results.reports.append(_take_all(measure, hosts, own, peers if own.peers else None, inner))
    return results


def _profile_into(path: Path, stack: ExitStack) -> None:
    """Let our processes sample themselves, and draw what they saw when all is over."""
    folder = tempfile.TemporaryDirectory(prefix="holdfast-bench-", ignore_cleanup_errors=True)
    seen = Path(stack.enter_context(folder))

    def draw() -> None:
        del os.environ[profile.VARIABLE]
        if sys.exc_info()[0] is None:
            path.write_text(flame.drawn(profile.gathered(seen), f"./dev bench {path.stem}"))
            note(f"bench: wrote {path}")

    os.environ[profile.VARIABLE] = str(seen)
    stack.callback(draw)


def _take_all(
    measure: Measure, hosts: Sequence[Host], options: argparse.Namespace, peers: Peers | None, stack: ExitStack
) -> Report:
    common = {"reps": options.reps, "quick": options.quick, "profiled": options.profile is not None}
    report = Report(measure, {**measure.settings(options), **common})
    cases = [case for host in hosts for case in _cases(measure, host, options, peers, stack)]
    for name, why in peers.missing(measure, cases).items() if peers else ():
        report.leave_out(name, why)
    for number in range(1, options.reps + 1):
        for case in cases:
            if not report.has_failed(case.database, case.subject, case.part):
                _take(case, report, f"[{number}/{options.reps}] {measure.name}: {case.title}")
    return report


def _cases(
    measure: Measure, host: Host, options: argparse.Namespace, peers: Peers | None, stack: ExitStack
) -> list[Case]:
    """Ours and theirs; what is compared goes back to back, we last."""
    ours = list(measure.cases(host, options, stack))
    if peers is None:
        return ours
    parts = list(dict.fromkeys(case.part for case in ours))
    theirs = peers.cases(measure, host, set(parts), options.count / measure.count, stack)
    return sorted([*theirs, *ours], key=lambda case: (parts.index(case.part), case.subject == OURS))


def _take(case: Case, report: Report, label: str) -> None:
    """One repetition; what goes wrong is reported, and the others go on."""
    try:
        figures = case.take()
    except Failed as failure:
        why = str(failure)
    except Exception as error:
        traceback.print_exc()
        why = f"{type(error).__name__}: {error}"
    else:
        report.add(case.database, case.subject, figures, case.details)
        note(f"{label}: {_shown(figures)}")
        return
    report.fail(case.database, case.subject, why, case.part)
    note(f"{label}: FAILED: {why}")


def _shown(figures: Figures) -> str:
    return ", ".join(f"{name} {value:,.1f}".strip() for name, value in figures.items())
