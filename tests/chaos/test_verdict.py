"""The verdict of a chaos run: good without violations, and otherwise with lost, duplicated, stuck or stale work."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import psycopg
import pytest

from holdfast import Holdfast
from tests.chaos.effects import TABLE, Line
from tests.chaos.facts import Checkpoint, Entry, Facts, RunRow, collect_facts
from tests.chaos.recovery import measure, percentile
from tests.chaos.verdict import Verdict, judge
from tests.chaos.worker_pool import Attack, Kill
from tests.chaos.workload import EXPECTED, Workload
from tests.support.charges import Charge, record_charges
from tests.support.culprits import CULPRITS
from tests.support.history_queries import fetch
from tests.support.ledger import Ledger
from tests.support.wait_until import wait_until


class Scene:
    """A database with the workload on it, and a worker in this process when it is wanted."""

    def __init__(self, url, ledger):
        self.ledger = ledger
        self.workload = Workload(Holdfast(url), ledger)
        self.app = self.workload.app
        self.runs = {}
        if url.startswith("sqlite"):
            with self.app.transaction() as connection:
                connection.execute(TABLE)
        else:
            with psycopg.connect(url) as own:
                own.execute(TABLE)
        self.app.store.prepare()
        record_charges(url)

    def start(self, kind, number=0):
        mark = f"{kind}-{number}"
        self.runs[mark] = self.workload.start[kind](mark)
        return mark

    def answer(self, mark):
        """Give a root what it waits for."""
        if mark.startswith(("order", "plain")):
            self.app.emit(f"go {mark}", "gone")
            self.runs[mark].send("note", "sent")
        if mark.startswith("topic"):
            self.workload.pay(mark)
            self.workload.pay(mark)
        if mark.startswith("graph"):
            self.runs[mark].gate("ok").complete("yes")

    def finish(self):
        wait_until(lambda: not fetch(self.app, "select 1 from {}runs where finished_at is null limit 1"))

    def facts(self):
        return collect_facts(self.app, self.ledger, {mark: run.id for mark, run in self.runs.items()})


@pytest.fixture
def scene(database_url, tmp_path):
    scene = Scene(database_url, Ledger(tmp_path / "ledger"))
    yield scene
    scene.app.close()


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """What a run of one root of each kind leaves behind, without any fault."""
    folder = tmp_path_factory.mktemp("calm")
    scene = Scene(f"sqlite:///{folder / 'calm.db'}", Ledger(folder / "ledger"))
    play(scene)
    facts = scene.facts()
    scene.app.close()
    return facts


def play(scene):
    with scene.app.worker(lease=30):
        for mark in [scene.start(kind) for kind in EXPECTED]:
            scene.answer(mark)
        scene.finish()


def test_without_faults_the_verdict_is_good_and_no_effect_is_repeated(scene):
    play(scene)
    verdict = judge(scene.facts())
    assert list(verdict.findings) == ["lost", "duplicated", "stuck", "stale writes accepted", "wrongly failed"]
    assert not any(verdict.findings.values()), verdict.findings
    assert verdict.effects == sum(len(steps) for expected in EXPECTED.values() for steps in expected.effects.values())
    assert verdict.repeated == verdict.late == 0


def test_an_acknowledged_run_missing_from_the_database_is_lost(scene):
    mark = scene.start("job")
    fetch(scene.app, "delete from {}runs")
    assert judge(scene.facts()).lost == [f"{mark} was acknowledged, but its run does not exist"]


def test_a_recorded_step_that_runs_again_is_duplicated(scene):
    mark = scene.start("order")
    with scene.app.worker(lease=30, max_resident=0):
        wait_until(lambda: scene.runs[mark].info().state == "waiting" and any("g2" in line for line in kept(scene)))
        fetch(scene.app, "delete from {}checkpoints where key like 's1-%'")
        scene.answer(mark)
        scene.finish()
    [found] = judge(scene.facts()).duplicated
    assert found.startswith(f"s1 of {mark} again in attempt 1")


def kept(scene):
    return [line for line in scene.ledger.lines() if line.startswith("kept")]


def test_an_unfinished_run_is_stuck(scene):
    mark = scene.start("job")
    [found] = judge(scene.facts()).stuck
    assert found.startswith(mark)
    assert found.endswith("is ready")


# What can't be done to a sound store is done to what it left behind


def without_effect(facts: Facts) -> Facts:
    lines = [line for line in facts.lines if (line.kind, line.mark, line.step) != ("did", "machine-0", "load1")]
    return dataclasses.replace(facts, lines=lines)


def without_row(facts: Facts) -> Facts:
    return dataclasses.replace(facts, rows=[row for row in facts.rows if row != ("order-0", "t1")])


def without_child(facts: Facts) -> Facts:
    return dataclasses.replace(facts, runs=[run for run in facts.runs if run.mark != "plain-0.m1"])


def without_subscriber(facts: Facts) -> Facts:
    return dataclasses.replace(facts, runs=[run for run in facts.runs if run.mark != "topic-0.placed_audit"])


def with_subscriber_twice(facts: Facts) -> Facts:
    bill = next(run for run in facts.runs if run.mark == "topic-0.paid_bill")
    return dataclasses.replace(facts, runs=[*facts.runs, bill._replace(id="another")])


def with_failure(facts: Facts) -> Facts:
    runs = [
        run._replace(state="failed", error='{"code": "crashed"}') if run.mark == "job-0" else run for run in facts.runs
    ]
    return dataclasses.replace(facts, runs=runs)


def with_undos_in_another_order(facts: Facts) -> Facts:
    return dataclasses.replace(
        facts, lines=[line._replace(at=0.0) if line.step == "undo-u1" else line for line in facts.lines]
    )


def with_row_twice(facts: Facts) -> Facts:
    return dataclasses.replace(facts, rows=[*facts.rows, ("order-0", "t1")])


def with_child_twice(facts: Facts) -> Facts:
    child = next(run for run in facts.runs if run.mark == "order-0.c1")
    return dataclasses.replace(facts, runs=[*facts.runs, child._replace(id="another")])


def with_job_twice(facts: Facts) -> Facts:
    job = next(line for line in facts.lines if line.mark == "job-0")
    return dataclasses.replace(facts, lines=[*facts.lines, job])


def with_other_key(facts: Facts) -> Facts:
    job = next(line for line in facts.lines if line.mark == "job-0")
    runs = [run._replace(fence=2) if run.mark == "job-0" else run for run in facts.runs]
    return dataclasses.replace(facts, lines=[*facts.lines, job._replace(word="other")], runs=runs)


def with_step_of_a_later_attempt(facts: Facts) -> Facts:
    return dataclasses.replace(facts, lines=[*facts.lines, effect(facts)._replace(attempt=2)])


def with_two_ends(facts: Facts) -> Facts:
    end = next(entry for entry in facts.history if entry.kind == "done")
    return dataclasses.replace(facts, history=[*facts.history, end._replace(n=99)])


def with_owner(facts: Facts) -> Facts:
    first, *rest = facts.runs
    return dataclasses.replace(facts, runs=[first._replace(session="host:1:x"), *rest])


def with_another_result(facts: Facts) -> Facts:
    line = next(line for line in facts.lines if (line.kind, line.mark, line.step) == ("kept", "order-0", "s1"))
    return dataclasses.replace(facts, lines=[*facts.lines, line._replace(word="1:99")])


def with_result_of_the_given_up(facts: Facts) -> Facts:
    """A later attempt did the step before its result was seen, and the result is that of an earlier one."""
    place = facts.lines.index(effect(facts))
    later = effect(facts)._replace(attempt=2)
    return dataclasses.replace(facts, lines=[*facts.lines[: place + 1], later, *facts.lines[place + 1 :]])


def with_old_checkpoint(facts: Facts) -> Facts:
    run = facts.checkpoints[0].run
    later = Checkpoint(run, 9, 1, "a", 5), Checkpoint(run, 9, 2, "b", 4)
    return dataclasses.replace(facts, checkpoints=[*facts.checkpoints, *later])


def with_end_under_an_old_fence(facts: Facts) -> Facts:
    return dataclasses.replace(facts, runs=[run._replace(fence=run.fence + 1) for run in facts.runs])


SESSION = "host:7:x"


def innocent(facts: Facts, mark: str = "job-0") -> str:
    return next(run.id for run in facts.runs if run.mark == mark)


def given_back(*runs: str) -> list[Entry]:
    return [Entry(run, 99, 103.0, "crashed", None, SESSION) for run in runs]


def with_charge_of_one_of_several(facts: Facts) -> Facts:
    """Its worker was killed from outside, but it wasn't alone in it."""
    run, other = innocent(facts), innocent(facts, "thread-0")
    return dataclasses.replace(
        facts,
        history=[*facts.history, *given_back(run, other)],
        charges=[Charge(run, SESSION, 103.0)],
        attacks=[Attack(7, 100.0, 100.0)],
    )


def with_charges_of_everybody(facts: Facts) -> Facts:
    runs = [run.id for run in facts.runs]
    return dataclasses.replace(
        facts, charges=[Charge(run, SESSION, 103.0) for run in runs], attacks=[Attack(7, 100.0, 100.0)]
    )


def with_charge_without_a_cause(facts: Facts) -> Facts:
    """It was alone, but nobody touched its worker; another one was killed, and this one's much earlier."""
    run = innocent(facts)
    return dataclasses.replace(
        facts,
        history=[*facts.history, *given_back(run)],
        charges=[Charge(run, SESSION, 103.0)],
        attacks=[Attack(8, 100.0, 100.0), Attack(7, 50.0, 51.0)],
        windows=[(20.0, 60.0), (104.0, 110.0)],
    )


def with_compensation_for_a_crash(facts: Facts) -> Facts:
    """It was to fail, but not by this."""
    runs = [run._replace(error='{"code": "crashed"}') if run.mark == "undo-0" else run for run in facts.runs]
    return dataclasses.replace(facts, runs=runs)


def with_failed_inner_graph(facts: Facts) -> Facts:
    runs = [run._replace(state="failed", error='{"code": "node"}') if not run.mark else run for run in facts.runs]
    return dataclasses.replace(facts, runs=runs)


def effect(facts: Facts) -> Line:
    return next(line for line in facts.lines if (line.kind, line.mark, line.step) == ("did", "order-0", "s1"))


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (without_effect, "lost"),
        (without_row, "lost"),
        (without_child, "lost"),
        (without_subscriber, "lost"),
        (with_failure, "lost"),
        (with_undos_in_another_order, "lost"),
        (with_row_twice, "duplicated"),
        (with_child_twice, "duplicated"),
        (with_subscriber_twice, "duplicated"),
        (with_job_twice, "duplicated"),
        (with_other_key, "duplicated"),
        (with_step_of_a_later_attempt, "duplicated"),
        (with_two_ends, "duplicated"),
        (with_owner, "stuck"),
        (with_another_result, "stale writes accepted"),
        (with_result_of_the_given_up, "stale writes accepted"),
        (with_old_checkpoint, "stale writes accepted"),
        (with_end_under_an_old_fence, "stale writes accepted"),
        (with_failure, "wrongly failed"),
        (with_charge_of_one_of_several, "wrongly failed"),
        (with_charges_of_everybody, "wrongly failed"),
        (with_charge_without_a_cause, "wrongly failed"),
        (with_compensation_for_a_crash, "wrongly failed"),
        (with_failed_inner_graph, "wrongly failed"),
    ],
)
def test_a_planted_violation_is_found(calm: Facts, plant: Callable[[Facts], Facts], found: str):
    assert judge(calm).good
    verdict: Verdict = judge(plant(calm))
    assert verdict.findings[found], verdict.findings
    assert not verdict.good


def test_a_late_effect_of_a_frozen_attempt_is_explained(calm: Facts):
    """The first attempt was frozen, the second did the step, and then the first one's effect came."""
    of_step = [line for line in calm.lines if (line.mark, line.step) == ("order-0", "s1")]
    is_failover = [line._replace(attempt=2, word="2:1" if line.kind == "kept" else line.word) for line in of_step]
    late = effect(calm)._replace(pid=1)
    verdict = judge(dataclasses.replace(calm, lines=[*is_failover, late], acknowledged={}))
    assert verdict.good
    assert verdict.late == 1


@pytest.mark.parametrize("cause", ["attack", "window"])
def test_a_run_that_a_fault_killed_alone_may_be_charged(calm: Facts, cause: str):
    run = innocent(calm)
    facts = dataclasses.replace(
        calm,
        history=[*calm.history, *given_back(run)],
        charges=[Charge(run, SESSION, 103.0)],
        attacks=[Attack(7, 100.0, 100.0)] if cause == "attack" else [],
        windows=[(99.0, 102.0)] if cause == "window" else [],
    )
    verdict = judge(facts)
    assert verdict.good, verdict.findings
    assert verdict.charged == 1


def test_a_crash_that_the_session_reported_itself_is_not_part_of_its_death(calm: Facts):
    """The session first reported a run that blocked its event loop; later a fault killed it with one run in it."""
    run = innocent(calm)
    blocker = RunRow("block-96", "block-96", "failed", 2, None, '{"code": "crashed"}')
    facts = dataclasses.replace(
        calm,
        runs=[*calm.runs, blocker],
        acknowledged={**calm.acknowledged, "block-96": "block-96"},
        history=[*calm.history, Entry("block-96", 3, 90.0, "crashed", 2, SESSION), *given_back(run)],
        charges=[Charge("block-96", SESSION, 90.0), Charge(run, SESSION, 103.0)],
        attacks=[Attack(7, 100.0, 100.0)],
    )
    verdict = judge(facts)
    assert verdict.good, verdict.findings
    assert verdict.charged == 1


@pytest.mark.parametrize(
    ("mark", "state", "code", "found"),
    [
        ("exit-90", "failed", "crashed", None),
        ("hang-91", "failed", "timeout", None),
        ("gil-92", "done", None, None),
        ("exit-93", "done", None, "lost"),
        ("block-94", "failed", "error", "lost"),
        ("block-95", "running", None, "stuck"),
    ],
)
def test_culprits_end_by_their_own_policy(calm: Facts, mark: str, state: str, code: str | None, found: str | None):
    error = None if code is None else f'{{"code": "{code}"}}'
    run = RunRow(mark, mark, state, 2, None, error)
    facts = dataclasses.replace(
        calm,
        runs=[*calm.runs, run],
        acknowledged={**calm.acknowledged, mark: mark},
        charges=[Charge(mark, SESSION, 103.0)],
    )
    findings = {name for name, what in judge(facts).findings.items() if what}
    assert findings == ({found} if found else set())


def test_charges_are_recorded_when_they_are_written(scene):
    scene.start("job")
    fetch(scene.app, "update {}runs set crashes = crashes + 1, session = null")
    fetch(scene.app, "update {}runs set crashes = 0")
    fetch(scene.app, "update {}runs set crashes = crashes + 1, session = null")
    facts = scene.facts()
    assert [charge.run for charge in facts.charges] == [facts.runs[0].id] * 2


def test_every_culprit_can_be_started(scene):
    for kind in CULPRITS:
        scene.start(kind)
    assert {run.mark for run in scene.facts().runs} == {f"{kind}-0" for kind in CULPRITS}


def test_recovery_is_measured_from_the_kill_to_the_next_effect():
    line = Line("began", "job-0", "-", "-", 2, 8, 103.5)
    run = RunRow("r", "job-0", "done", 2, None, None)
    crash = Entry("r", 1, 103.0, "crashed", None, "host:7:x")
    facts = Facts([line], [run], [crash], [], [], {}, [Kill(7, 100.0)])
    assert measure(facts).undisturbed == [3.5]
    disturbed = measure(dataclasses.replace(facts, windows=[(101.0, 102.0)]))
    assert (disturbed.everything, disturbed.undisturbed) == ([3.5], [])
    paused = measure(dataclasses.replace(facts, pauses=[(103.2, 104.0)]))
    assert (paused.everything, paused.undisturbed) == ([3.5], [])
    before = Entry("r", 0, 99.0, "worker_lost", None, "host:6:x")
    isolated = measure(dataclasses.replace(facts, history=[before, crash]))
    assert (isolated.undisturbed, isolated.isolated) == ([], [3.5])
    assert percentile([1.0, 2.0, 3.0], 0.5) == 2.0
    assert percentile([], 0.5) is None
