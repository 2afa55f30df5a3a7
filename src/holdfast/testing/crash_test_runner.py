"""Runs a marked test again and again, a crash at another point each time, and reports it as one test."""

from __future__ import annotations

import time
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from holdfast.testing.crash_injection import MARK, CrashInjector, active_injectors

TITLE = "crash_at_every_step"
INTERRUPTS = (KeyboardInterrupt, pytest.exit.Exception)
HINT = (
    "What a durable function does outside of steps is done again whenever it is replayed: after a crash, and after\n"
    "each wait. What a step does is done again when its worker dies before that is on record: let the other side\n"
    "know it by holdfast.idempotency_key()."
)


class CrashTestRunner:
    """All runs of one test. Each has its fixtures anew; the first is without a crash, and notes the points."""

    def __init__(self, item: pytest.Item, unrecorded: bool) -> None:
        self._item = item
        self._unrecorded = unrecorded

    def run(self, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        started = time.perf_counter()
        try:
            reports = self._all()
        finally:
            after = pytest.CallInfo.from_call(lambda: self._leave(nextitem), when="teardown", reraise=INTERRUPTS)
        others = time.perf_counter() - started - sum(report.duration for report in reports)
        _main(reports).duration += max(others, 0.0)
        return [*reports, self._report(after)] if after.excinfo is not None else reports

    def _all(self) -> list[pytest.TestReport]:
        plain = CrashInjector()
        reports = self._once(plain)
        if not _passed(reports):
            return reports
        points = [point for point in plain.points if point.recorded or self._unrecorded]
        if not points:
            return [reports[0], self._nowhere(), reports[-1]]
        survived: list[CrashInjector] = []
        for point in points:
            crashes = CrashInjector(point)
            tried = self._once(crashes)
            if not _passed(tried):
                return _told(tried, crashes, survived)
            if crashes.where is not None:
                survived.append(crashes)
        said = f"{len(survived)} crashes, at {len(points)} points where a worker wrote something"
        _main(reports).sections.append((TITLE, said))
        return reports

    def _once(self, crashes: CrashInjector) -> list[pytest.TestReport]:
        """Set up, call and tear down, but for what the test shares with its neighbours."""
        active_injectors.append(crashes)
        try:
            shared: Any = self._item.parent  # as if the next test were another one of the same module or class
            self._item._report_sections.clear()  # what earlier runs have logged and printed
            return runtestprotocol(self._item, log=False, nextitem=shared)
        finally:
            active_injectors.remove(crashes)

    def _leave(self, nextitem: pytest.Item | None) -> None:
        self._item.session._setupstate.teardown_exact(nextitem)

    def _report(self, call: pytest.CallInfo[Any]) -> pytest.TestReport:
        report: pytest.TestReport = self._item.ihook.pytest_runtest_makereport(item=self._item, call=call)
        return report

    def _nowhere(self) -> pytest.TestReport:
        why = f"@{MARK}: no worker wrote anything in this test: drain with the fixture kit, or with a Kit of its own"
        return self._report(pytest.CallInfo.from_call(lambda: pytest.fail(why, pytrace=False), when="call"))


def _told(
    reports: list[pytest.TestReport], crashes: CrashInjector, survived: list[CrashInjector]
) -> list[pytest.TestReport]:
    """The reports of a run that failed, with where its worker died."""
    said = f"The test passes without a crash. It fails with {_shown(crashes)}."
    if survived:
        said += f"\nIt passed with {_shown(survived[-1])}."
    for report in reports:
        if report.failed:
            report.sections.insert(0, (TITLE, f"{said}\n\n{HINT}"))
            crash = getattr(report.longrepr, "reprcrash", None)
            if crash is not None:  # which has the words of the summary
                crash.message = f"with {_shown(crashes)}: {crash.message}"
    return reports


def _shown(crashes: CrashInjector) -> str:
    return str(crashes.at) if crashes.where is None else f"{crashes.at}, at {crashes.where}"


def _main(reports: list[pytest.TestReport]) -> pytest.TestReport:
    """That of the test itself, or of what it didn't come beyond."""
    return next((report for report in reports if report.when == "call"), reports[0])


def _passed(reports: list[pytest.TestReport]) -> bool:
    return all(report.passed for report in reports)


def run_crash_test(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Run a marked test as often as there are points to crash at, and tell the outcome."""
    mark = item.get_closest_marker(MARK)
    unrecorded = mark is None or mark.kwargs.get("unrecorded", True)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in CrashTestRunner(item, unrecorded).run(nextitem):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
