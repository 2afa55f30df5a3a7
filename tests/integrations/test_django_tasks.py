"""The backend for Django's task interface."""

from __future__ import annotations

from tests.integrations.conftest import Project

TASKS = """
    from shop.models import Order
    try:
        from django.tasks import task
    except ImportError:
        from django_tasks import task

    @task(takes_context=True)
    def count(context, name, *, more=0):
        Order.objects.create(item=name)
        return [context.attempt, context.task_result.id, name, more]

    @task
    async def count_async(name):
        return [name, await Order.objects.acount()]

    @task
    def fails(number):
        raise ValueError(f"no {number}")

    @task
    def returns_no_json(large):
        return "x" * 20_000_000 if large else object()
"""

WORK = """
    from datetime import timedelta
    from django.db import transaction
    from django.utils import timezone
    from holdfast.integrations.django import app
    from holdfast.integrations.django.backend import HoldfastBackend, TaskResultDoesNotExist, signals
    from shop.more_tasks import count, count_async, fails, returns_no_json
    from shop.reports import report

    heard = []
    for name in ("task_enqueued", "task_started", "task_finished"):
        def hear(sender, task_result, name=name, **_):
            heard.append((name, task_result.id, str(task_result.status)))
        getattr(signals, name).connect(hear, weak=False)

    good = count.enqueue("rope", more=(1, 2))
    later = count.using(run_after=timezone.now() + timedelta(hours=1), priority=7).enqueue("late")
    bad = fails.enqueue(3)
    plain = report.enqueue("Oslo")
    assert (good.status, good.is_finished, good.attempts) == ("READY", False, 0)
    app.worker().drain()
    coroutine = count_async.enqueue("lamp")  # sees what the first one wrote
    app.worker().drain()

    for result in (good, later, coroutine, bad, plain):
        result.refresh()
    assert good.return_value == [1, good.id, "rope", [1, 2]], good
    assert (good.status, good.attempts, good.kwargs) == ("SUCCESSFUL", 1, {"more": [1, 2]})
    assert good.enqueued_at <= good.started_at == good.last_attempted_at <= good.finished_at
    assert coroutine.return_value == ["lamp", 1]
    assert plain.return_value == "all is well in Oslo"
    assert (plain.task.queue_name, plain.task.priority) == ("mail", 10)
    assert later.status == "READY" and app.get_run(later.id).info().state == "scheduled"
    assert app.get_run(later.id).info().priority == 7

    [error] = bad.errors
    assert bad.status == "FAILED" and error.exception_class is ValueError and "no 3" in error.traceback
    assert [each[0] for each in heard if each[1] == good.id] == ["task_enqueued", "task_started", "task_finished"]
    assert [each[::2] for each in heard if each[1] == bad.id] == [
        ("task_enqueued", "READY"), ("task_started", "RUNNING"), ("task_finished", "FAILED")
    ]

    assert count.get_result(good.id).return_value == good.return_value
    own = app.remote("shop.tasks.confirm").enqueue(1)
    for missing in ("01a1e384-c3e2-7037-82c1-27db9de4e4f1", "nonsense", str(own.id)):
        try:
            count.get_result(missing)
        except TaskResultDoesNotExist:
            print("missing")
    try:
        count.enqueue(object())
    except TypeError as error:
        print("refused")
    from holdfast import Retry
    backend = HoldfastBackend("default", {"OPTIONS": {"RETRY": Retry(max_attempts=2, delay=0)}})
    again = backend.enqueue(fails, [4], {})
    app.worker().drain()
    again.refresh()
    assert (again.status, again.attempts, len(again.errors)) == ("FAILED", 2, 2), again
    unstored = [returns_no_json.enqueue(large) for large in (False, True)]
    app.worker().drain()
    for result in unstored:
        result.refresh()
        assert result.status == "FAILED", result
        assert [each[2] for each in heard if each[1] == result.id] == ["READY", "RUNNING", "FAILED"], heard
    for options in ({"RETRIES": 3}, {"TIMEOUT": "soon"}):
        wrong = HoldfastBackend("default", {"OPTIONS": options})
        [found] = wrong.check()
        print(found.id, found.msg)
    try:
        wrong.enqueue(fails, [4], {})
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_the_backend_implements_the_task_interface(project: Project):
    project.add("shop/more_tasks.py", TASKS)
    project.manage("migrate")
    *said, unknown, invalid, raised = project.run(WORK).splitlines()
    assert said == ["missing", "missing", "missing", "refused"]
    assert "holdfast.E003 TASKS: default: OPTIONS has 'RETRIES'; HoldfastBackend takes RETRY," in unknown
    assert "holdfast.E003 TASKS: default: OPTIONS: " in invalid
    assert raised == invalid.replace("holdfast.E003", "ImproperlyConfigured")


def test_a_task_is_enqueued_with_the_open_transaction_or_not_at_all(postgres_project):
    postgres_project.manage("migrate")
    said = postgres_project.run("""
        from django.db import transaction
        from holdfast.integrations.django import app
        from shop.reports import report
        try:
            with transaction.atomic():
                report.enqueue("Oslo")
                raise RuntimeError
        except RuntimeError:
            print(len(app.runs()))
        with transaction.atomic():
            report.enqueue("Rome")
            print(len(app.runs()))
        print(len(app.runs()))
    """)
    assert said.split() == ["0", "0", "1"]


def test_a_worker_sends_signals_for_failures(project: Project):
    project.add("shop/more_tasks.py", TASKS)
    project.add("shop/settings.py", '\nHOLDFAST["INCLUDE"] = ["shop.more_tasks", "shop.listening"]\n')
    project.add(
        "shop/listening.py",
        """
        from holdfast.integrations.django.backend import signals
        def hear(sender, task_result, **_):
            print("heard", task_result.args, task_result.status, flush=True)
        signals.task_finished.connect(hear)
        """,
    )
    project.manage("migrate")
    project.run("from shop.more_tasks import fails; fails.enqueue(5)")
    worker = project.start("holdfast", "worker")
    worker.wait_for("heard [5] FAILED", 120)
