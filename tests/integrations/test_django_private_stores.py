"""Tests of a Django project: they never touch the real store, and no run leaks from one test to another."""

from __future__ import annotations

import pytest

from tests.integrations.conftest import Project

TASKS = """
    from holdfast.integrations.django import app
    from shop.models import Order

    app.limit("one at a time", concurrency=1)

    @app.task(name="shop.count", limits=["one at a time"])
    def count() -> int:
        return Order.objects.count()

    @app.task(name="shop.count_in_process", run_in="process")
    def count_in_process() -> int:
        return Order.objects.count()

    @app.task(name="shop.enqueue_in_process", run_in="process")
    def enqueue_in_process() -> str:
        return str(count.enqueue().id)
"""
TESTS = """
    from unittest import TestCase as PlainTestCase
    from django.core.management import call_command
    from django.db import connection
    from django.test import SimpleTestCase, TestCase, TransactionTestCase
    from holdfast import Retry
    from holdfast.integrations.django import app
    from holdfast.testing import Kit
    from shop.counting import count, count_in_process, enqueue_in_process
    from shop.models import Order
    from shop.tasks import confirm

    class EmptyStore:
        def test_first(self):
            assert not app.runs()
            assert not any(queue.paused for queue in app.store.queues.list_all())
            assert app.emit("happened"), "an event of another test"
            count.options(key="once").enqueue()
            app.store.queues.pause(["default"])

        def test_second(self):
            self.test_first()

    class Simple(EmptyStore, SimpleTestCase):
        pass

    class Rolled(EmptyStore, TestCase):
        pass

    class Committed(EmptyStore, TransactionTestCase):
        available_apps = ["shop"]  # Django sends no signal after the flush

        def test_a_worker_runs_only_what_the_test_has_enqueued(self):
            Order.objects.create(item="lamp")
            run = count.enqueue()
            assert app.worker().drain() == 1
            assert run.result(timeout=0) == 1

        def test_again(self):
            self.test_a_worker_runs_only_what_the_test_has_enqueued()

    class Others(TransactionTestCase):
        def test_processes_use_the_test_database(self):
            Order.objects.create(item="lamp")
            once = Retry(max_attempts=1)
            counting = count_in_process.options(retry=once).enqueue()
            enqueuing = enqueue_in_process.options(retry=once).enqueue()
            app.worker().drain()
            if connection.vendor == "postgresql":
                self.assertEqual(counting.result(timeout=0), 1)
                self.assertEqual(app.get_run(enqueuing.result(timeout=0)).result(timeout=0), 1)
            else:
                self.assertIn("no such table", str(counting.info().error))
                self.assertIn("stores its runs in memory", str(enqueuing.info().error))

        def test_commands_act_on_the_private_store(self):
            run = count.options(delay=60).enqueue()
            call_command("holdfast", "cancel", str(run.id))
            self.assertEqual(run.info().state, "cancelled")

        def test_the_kit_and_close_work(self):
            with Kit(app):
                confirm.enqueue(1)
            assert not app.runs()
            run = count.enqueue()
            app.close()
            assert run.info().state == "ready"

    class Plain(PlainTestCase):
        def test_a_test_without_django_has_a_private_store_too(self):
            assert "shop.real" not in [info.task for info in app.runs()]
"""
UNCHANGED = "[('shop.count', 'ready'), ('shop.real', 'ready')] 2\n"


def enqueue_real_runs(project: Project) -> None:
    project.run("""
        from django.core.management import call_command
        from holdfast.integrations.django import app
        from shop.models import Order
        call_command("migrate", verbosity=0)
        for name in ("shop.count", "shop.real"):
            app.remote(name).enqueue()
        Order.objects.bulk_create([Order(item="real"), Order(item="real")])
    """)


def real_state(project: Project) -> str:
    return project.run("""
        from holdfast.integrations.django import app
        from shop.models import Order
        print(sorted((info.task, info.state) for info in app.runs()), Order.objects.count())
    """)


def test_tests_never_touch_the_real_store_and_leak_no_runs(project: Project):
    project.add("shop/counting.py", TASKS)
    project.add("shop/tests.py", TESTS)
    enqueue_real_runs(project)
    project.manage("test", "shop", "--keepdb")
    project.manage("test", "shop.tests.Rolled", "--keepdb")
    assert real_state(project) == UNCHANGED


@pytest.mark.parametrize("setting", [pytest.param("URL", marks=pytest.mark.slow), "APP"])
def test_other_ways_to_name_the_database_are_private_in_tests_too(postgres_project: Project, setting):
    """The database of the URL is Django's, so that its test database is used."""
    project = postgres_project
    project.add("shop/settings.py", "from holdfast.integrations.django.connections import url_of\nHOLDFAST = {}\n")
    if setting == "URL":
        project.add("shop/settings.py", 'HOLDFAST["URL"] = url_of(DATABASES["default"])\n')
    else:
        project.add("shop/settings.py", 'HOLDFAST["APP"] = "shop.own:app"\n')
        project.add(
            "shop/own.py",
            """
            from django.conf import settings
            from holdfast import Holdfast
            from holdfast.integrations.django.connections import url_of
            app = Holdfast(url_of(settings.DATABASES["default"]))
        """,
        )
    project.add("shop/counting.py", TASKS)
    project.add("shop/tests.py", TESTS)
    enqueue_real_runs(project)
    project.manage("test", "shop.tests.Rolled", "shop.tests.Others")
    assert real_state(project) == UNCHANGED


def test_pytest_and_the_test_server_use_a_private_store(sqlite_project: Project):
    """pytest-django gives only tests with a database a new outbox."""
    project = sqlite_project
    enqueue_real_runs(project)
    project.add(
        "conftest.py",
        """
        import os, django
        os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
        django.setup()
        from django.test.utils import setup_test_environment
        setup_test_environment()
        """,
    )
    project.add(
        "test_shop.py",
        """
        import pytest
        from holdfast.integrations.django import app

        @pytest.mark.parametrize("number", [1, 2])
        def test_the_store_is_empty(number):
            assert not app.runs()
            app.remote("x").enqueue()
        """,
    )
    assert "2 passed" in project.run("import pytest; pytest.main(['-q', '-p', 'no:cacheprovider'])")
    served = project.run("""
        from django.db import connection
        from holdfast.integrations.django import app
        connection.creation.create_test_db(verbosity=0)  # as `manage.py testserver` does
        print(len(app.runs()))
    """)
    assert served == "0\n"
    assert real_state(project) == UNCHANGED
