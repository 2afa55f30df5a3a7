"""Run a marked test repeatedly, with a crash at a different point each time, and report it as one test."""

from __future__ import annotations

import time
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from holdfast.model.names import counted
from holdfast.testing.crash_injection import MARK, CrashInjector, active_injectors

TITLE = "crash_at_every_step"
INTERRUPTS = (KeyboardInterrupt, pytest.exit.Exception)
HINT = (
    "Code outside of steps runs again at every replay: after a crash and after each wait. A step runs again if its\n"
    "worker dies before the result is recorded: pass holdfast.idempotency_key() to the external system."
)


class CrashTestRunner:
    """Runs one test repeatedly, with new fixtures each time. The first run records the crash points."""

    def __init__(self, item: pytest.Item, unrecorded: bool) -> None:
        self._item = item
        self._unrecorded = unrecorded

    def run(self, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        started = time.perf_counter()
        try:
            reports = self._all()
        finally:
            after = pytest.CallInfo.from_call(lambda: self._tear_down(nextitem), when="teardown", reraise=INTERRUPTS)
        rest = time.perf_counter() - started - sum(report.duration for report in reports)
        _main(reports).duration += max(rest, 0.0)
        return [*reports, self._report(after)] if after.excinfo is not None else reports

    def _all(self) -> list[pytest.TestReport]:
        plain = CrashInjector()
        reports = self._once(plain)
        if not _passed(reports):
            return reports
        points = [point for point in plain.points if point.recorded or self._unrecorded]
        if not points:
            return [reports[0], self._no_crash_points(), reports[-1]]
        passed: list[CrashInjector] = []
        for point in points:
            crashes = CrashInjector(point)
            repeated = self._once(crashes)
            if not _passed(repeated):
                return _explained(repeated, crashes, passed)
            if crashes.where is not None:
                passed.append(crashes)
        crashes_text = counted(len(passed), "crash", "crashes")
        message = f"{crashes_text}, at {counted(len(points), 'point')} where a worker wrote"
        _main(reports).sections.append((TITLE, message))
        return reports

    def _once(self, crashes: CrashInjector) -> list[pytest.TestReport]:
        """Set up, call and tear down, except for fixtures that the test shares with others."""
        active_injectors.append(crashes)
        try:
            shared: Any = self._item.parent  # As if the next test were in the same module or class.
            self._item._report_sections.clear()  # Output of earlier runs.
            return runtestprotocol(self._item, log=False, nextitem=shared)
        finally:
            active_injectors.remove(crashes)

    def _tear_down(self, nextitem: pytest.Item | None) -> None:
        self._item.session._setupstate.teardown_exact(nextitem)

    def _report(self, call: pytest.CallInfo[Any]) -> pytest.TestReport:
        report: pytest.TestReport = self._item.ihook.pytest_runtest_makereport(item=self._item, call=call)
        return report

    def _no_crash_points(self) -> pytest.TestReport:
        why = f"@{MARK}: no worker wrote anything in this test: call drain() of the kit fixture or of a Kit"
        return self._report(pytest.CallInfo.from_call(lambda: pytest.fail(why, pytrace=False), when="call"))


def _explained(
    reports: list[pytest.TestReport], crashes: CrashInjector, passed: list[CrashInjector]
) -> list[pytest.TestReport]:
    """Add to the reports of a failed run where its worker crashed."""
    message = f"The test passes without a crash. It fails with {_shown(crashes)}."
    if passed:
        message += f"\nIt passed with {_shown(passed[-1])}."
    for report in reports:
        if report.failed:
            report.sections.insert(0, (TITLE, f"{message}\n\n{HINT}"))
            crash = getattr(report.longrepr, "reprcrash", None)
            if crash is not None:  # The summary shows this message.
                crash.message = f"with {_shown(crashes)}: {crash.message}"
    return reports


def _shown(crashes: CrashInjector) -> str:
    return str(crashes.at) if crashes.where is None else f"{crashes.at}, at {crashes.where}"


def _main(reports: list[pytest.TestReport]) -> pytest.TestReport:
    """Return the report of the call, or of the setup that failed before it."""
    return next((report for report in reports if report.when == "call"), reports[0])


def _passed(reports: list[pytest.TestReport]) -> bool:
    return all(report.passed for report in reports)


def run_crash_test(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Run a marked test once per crash point and report one outcome."""
    mark = item.get_closest_marker(MARK)
    unrecorded = mark is None or mark.kwargs.get("unrecorded", True)
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for report in CrashTestRunner(item, unrecorded).run(nextitem):
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
