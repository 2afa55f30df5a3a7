"""The Django app: settings, `manage.py holdfast`, the worker, transactions, test databases."""

from __future__ import annotations

import json
import signal

from tests.integrations.conftest import Project

ORDER = """
    from django.test import Client
    from shop.models import Order
    answer = Client().post("/orders", {"item": "rope"}, headers={"host": "localhost"})
    print(answer.content.decode())
"""


def test_the_project_of_the_guide_ships_an_order_and_its_worker_stops(postgres_project):
    project = postgres_project
    project.add("shop/settings.py", "\nALLOWED_HOSTS = ['localhost']\n")
    assert "No changes" not in project.manage("migrate")
    answer = json.loads(project.run(ORDER))
    worker = project.start("holdfast", "worker")
    result = project.run(f"""
        from holdfast.integrations.django import app
        from shop.models import Order
        print(app.get_run({answer["run"]!r}).result(timeout=60), Order.objects.get(pk={answer["order"]}).shipped)
    """)
    assert result == "a mail about rope True\n"
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, worker.log


def test_a_rolled_back_order_leaves_no_run(postgres_project):
    project = postgres_project
    project.manage("migrate")
    seen = project.run("""
        from django.db import transaction
        from holdfast.integrations.django import app
        from shop.models import Order
        from shop.tasks import fulfill
        try:
            with transaction.atomic():
                fulfill.options(connection="django").enqueue(Order.objects.create(item="rope").pk)
                raise RuntimeError
        except RuntimeError:
            print(Order.objects.count(), len(app.runs()))
    """)
    assert seen == "0 0\n"


ALIAS = """
    import asyncio
    from asgiref.sync import async_to_sync
    from django.db import connections, transaction
    from holdfast import Graph
    from holdfast.errors import ConfigError
    from holdfast.integrations.django import app
    from shop.tasks import confirm
    in_django = confirm.options(connection="django")

    async def enqueue():
        graph = Graph("release")
        graph.add(confirm, 3)
        await app.asubmit(graph, connection="django")
        return await in_django.aenqueue(2)

    for rolled_back in (True, False):
        with transaction.atomic(using="jobs"):
            in_django.enqueue(1)
            async_to_sync(enqueue)()
            print(len(app.runs()))
            transaction.set_rollback(rolled_back, using="jobs")
        print(len(app.runs()))
    for call in (lambda: in_django.enqueue(1), lambda: asyncio.run(enqueue())):
        try:
            call()
        except ConfigError as error:
            print(error)
"""


def test_connection_django_uses_the_alias_of_the_setting_also_in_async_code(postgres_project):
    postgres_project.add(
        "shop/settings.py",
        "DATABASES['jobs'] = dict(DATABASES['default'])\nDATABASES['default'] |= {'HOST': 'unreachable.invalid'}\n"
        "HOLDFAST['DATABASE'] = 'jobs'\n",
    )
    postgres_project.manage("holdfast", "migrate")
    *counts, refused, refused_in_async = postgres_project.run(ALIAS).splitlines()
    assert counts == ["0", "0", "0", "4"]
    assert refused == refused_in_async
    assert "write `with transaction.atomic(using='jobs'):`" in refused


def test_migrate_creates_the_tables_in_djangos_database(postgres_project):
    postgres_project.add("shop/settings.py", '\nHOLDFAST["MIGRATE"] = False\nHOLDFAST["SCHEMA"] = "work"\n')
    counted = """
        from django.db import connection
        with connection.cursor() as cursor:
            cursor.execute("select count(*) from information_schema.tables where table_schema = 'work'")
            print(cursor.fetchone()[0] > 10)
    """
    assert postgres_project.run(counted) == "False\n"
    assert " [ ] 0001_runs\n" in postgres_project.manage("showmigrations")
    assert "Running migrations of Holdfast:\n  Applied 0001_runs\n" in postgres_project.manage("migrate")
    assert postgres_project.run(counted) == "True\n"


def test_manage_py_uses_the_projects_app_and_passes_exit_codes_on(project: Project):
    project.add("words.py", WORDS)
    said = project.manage("migrate") + project.run("import words")
    assert "Running migrations of Holdfast:\n  No migrations to apply.\n" in said
    assert "exit 0 runs --verbosity 0 -v 2 --no-color --pythonpath ." in said
    assert "traceback RunNotFound" in said
    assert "shop.tasks.fulfill" in said
    assert "shop.reports.report" in said
    assert "exit 0 tasks --settings=shop.settings" in said
    assert "exit 0 runs --json" in said
    assert "exit 0 cancel" in said
    assert "exit 2 nonsense" in said
    assert "worker" in said
    assert "raised 2 holdfast: no run id starts with 0000" in said


WORDS = """
    import io, json
    from contextlib import redirect_stdout
    from django.core.management import CommandError, call_command, execute_from_command_line
    from shop.tasks import confirm

    def manage(*words):
        try:
            execute_from_command_line(["manage.py", *words])
        except SystemExit as end:
            print("exit", end.code, *words[1:])

    manage("help", "holdfast")
    manage("holdfast", "tasks", "--settings=shop.settings")
    manage("holdfast", "nonsense")
    run = confirm.enqueue(1)
    with redirect_stdout(io.StringIO()) as output:
        manage("holdfast", "runs", "--json")
    print(output.getvalue())
    [listed] = json.loads(output.getvalue().partition("exit")[0])
    assert (listed["id"], listed["task"]) == (str(run.id), "shop.tasks.confirm")
    manage("holdfast", "cancel", str(run.id))
    assert run.info().state == "cancelled"
    try:
        call_command("holdfast", "show", "0000")
    except CommandError as error:
        print("raised", error.returncode, error)
    output, errors = io.StringIO(), io.StringIO()
    call_command("holdfast", "--json", "runs", stdout=output, stderr=errors)
    assert json.loads(output.getvalue())[0]["id"] == str(run.id), output.getvalue()
    call_command("holdfast", "runs", "--state", "done", stdout=io.StringIO(), stderr=errors)
    assert "no run" in errors.getvalue().lower(), errors.getvalue()
    silent = io.StringIO()
    call_command("holdfast", "runs", "--state", "done", verbosity=0, stdout=io.StringIO(), stderr=silent)
    assert silent.getvalue() == "", silent.getvalue()
    manage("holdfast", "runs", "--verbosity", "0", "-v", "2", "--no-color", "--pythonpath", ".")
    try:
        execute_from_command_line(["manage.py", "holdfast", "show", "0000", "--traceback"])
    except Exception as error:
        print("traceback", type(error).__name__)
    shown = io.StringIO()
    call_command("showmigrations", stdout=shown)
    assert "holdfast\\n [X] 0001_runs\\n" in shown.getvalue() and "shop\\n [X] 0001_initial" in shown.getvalue()
    call_command("showmigrations", "holdfast", format="plan", stdout=(shown := io.StringIO()))
    assert shown.getvalue().startswith("[X]  holdfast.0001_runs\\n")
"""


def test_the_holdfast_command_sets_django_up(project: Project):
    project.manage("migrate")
    listed = project.run("""
        import subprocess, sys
        command = [sys.executable, "-m", "holdfast.cli", "tasks", "--app", "holdfast.integrations.django:app"]
        print(subprocess.run(command, capture_output=True, text=True).stdout)
    """)
    assert "shop.tasks.fulfill" in listed


WATCHED = """
    import os
    from django.db import connection
    from holdfast.integrations.django import app
    from shop.models import Order

    @app.task(name="in thread")
    def in_thread() -> str:
        before = connection.connection is None
        Order.objects.count()
        return f"fresh {before}"

    @app.task(name="in process", run_in="process")
    def in_process(parent: int) -> str:
        assert os.getpid() != parent
        return f"fresh {connection.connection is None}, {Order.objects.count()} orders"

"""


def test_connections_are_closed_in_threads_and_django_is_set_up_in_processes(project: Project):
    project.manage("migrate")
    project.add("shop/watched.py", WATCHED)
    said = project.run("""
        import os
        from holdfast.integrations.django import app
        from shop.watched import in_process, in_thread
        with app.worker(concurrency=1):
            for _ in range(3):
                print(in_thread.enqueue().result(timeout=60))
                print(in_process.enqueue(os.getpid()).result(timeout=60))
    """)
    assert said.splitlines() == ["fresh True", "fresh True, 0 orders"] * 3


WRONG = {
    'HOLDFAST = {"URI": "x"}': "unknown key 'URI'; the keys are APP, URL",
    'HOLDFAST = {"URL": "sqlite:///runs.db", "SECRET": "short"}': "at least 32 characters",
    "HOLDFAST = []": "must be a dict",
    'HOLDFAST = {"APP": "shop.own:app", "SCHEMA": "x"}': "set SCHEMA on your own app",
    'HOLDFAST = {"APP": "shop.none:app"}': "module 'shop.none' is neither in",
    'HOLDFAST = {"DATABASE": "other"}': "'other' is not in DATABASES",
    "HOLDFAST = {}": "'default' is sqlite, which can't store runs: set HOLDFAST",
    "HOLDFAST = {'URL': f'sqlite:///{BASE_DIR}/django.db'}": "file of Django's database 'default'",
    "HOLDFAST = {'URL': BASE_DIR}": "URL must be a str, not PosixPath",
    "HOLDFAST = {'INCLUDE': 'shop.reports'}": "INCLUDE must be a list or tuple, not str",
    "HOLDFAST = {'URL': 'mysql://x'}": "unsupported database URL",
}


def test_an_invalid_setting_is_rejected(sqlite_project):
    said = sqlite_project.run(f"""
        from pathlib import Path
        from django.test import override_settings
        from holdfast.errors import ConfigError
        from holdfast.integrations.django.conf import make_app, read_setting
        BASE_DIR = Path.cwd()
        for code in {list(WRONG)!r}:
            names = {{"BASE_DIR": BASE_DIR}}
            exec(code, names)
            with override_settings(HOLDFAST=names["HOLDFAST"]):
                try:
                    make_app(read_setting())
                except ConfigError as error:
                    print(error)
    """)
    for line, words in zip(said.splitlines(), WRONG.values(), strict=True):
        assert words in line


def test_check_reports_an_invalid_setting_and_other_commands_refuse(sqlite_project):
    """The modules with tasks can be imported nevertheless: the URLs of the project need them."""
    sqlite_project.add("shop/settings.py", "\nHOLDFAST = {}\n")
    said = " ".join(sqlite_project.manage("check", ok=False).split())
    assert "?: (holdfast.E001) Django's database 'default' is sqlite, which can't store runs" in said
    assert "Traceback" not in said
    refused = sqlite_project.manage("holdfast", "runs", ok=False)
    assert refused.startswith("holdfast: Django's database 'default' is sqlite, which can't store runs")
    said = sqlite_project.run("from shop.tasks import confirm; confirm.enqueue(1)", ok=False)
    assert "ConfigError: Django's database 'default' is sqlite" in said


def test_check_reports_modules_that_a_worker_could_not_import(sqlite_project):
    sqlite_project.add("shop/settings.py", "\nHOLDFAST['INCLUDE'] = ['shop.reprots', 'shop.broken']\n")
    sqlite_project.add("shop/broken.py", "1 / 0\n")
    said = " ".join(sqlite_project.manage("check", ok=False).split())
    assert '(holdfast.E002) setting HOLDFAST: "INCLUDE": module shop.reprots can\'t be imported' in said
    assert "module shop.broken can't be imported: ZeroDivisionError: division by zero" in said


def test_a_custom_app_is_used(sqlite_project):
    sqlite_project.add("shop/settings.py", '\nHOLDFAST = {"APP": "shop.own:own"}\n')
    sqlite_project.add("shop/own.py", "from holdfast import Holdfast\nown = Holdfast('sqlite:///own.db')\n")
    same = "from holdfast.integrations.django import app; from shop.own import own; print(app is own)"
    assert sqlite_project.run(same) == "True\n"


TESTS = """
    from django.db import connection, transaction
    from django.test import TestCase, TransactionTestCase
    from holdfast.client import results
    from holdfast.integrations.django import app
    from shop.models import Order
    from shop.tasks import confirm, fulfill

    results.LISTEN_FROM_S, results.LISTENER_LINGER_S = 0.0, 600.0  # it would block dropping the database

    class Working(TransactionTestCase):
        def test_a_worker_sees_the_test_database(self):
            with transaction.atomic():
                order = Order.objects.create(item="lamp")
                run = fulfill.options(connection="django").enqueue(order.pk)
            with app.worker():
                assert run.result(timeout=60) == "a mail about lamp"
            assert Order.objects.get().shipped

        def test_a_worker_leaves_no_connections(self):
            with app.worker(concurrency=5):
                for run in [*hold.enqueue_many([()] * 10), count_async.enqueue()]:
                    run.result(timeout=60)
            with connection.cursor() as cursor:
                cursor.execute(
                    "select application_name, query from pg_stat_activity where datname = current_database()"
                    " and pid <> pg_backend_pid() and application_name not like 'holdfast %'"
                )
                self.assertEqual(cursor.fetchall(), [])

    @app.task(name="hold")
    def hold() -> None:
        with connection.cursor() as cursor:
            cursor.execute("select pg_sleep(0.01)")

    @app.task(name="count async")
    async def count_async() -> int:
        return await Order.objects.acount()

    class Rolling(TestCase):
        def test_what_is_enqueued_in_a_test_is_rolled_back_with_it(self):
            run = confirm.options(connection="django").enqueue(1)
            assert confirm.name == "shop.tasks.confirm"

        def test_other_tests_do_not_see_it(self):
            assert [info.task for info in app.runs(task="shop.tasks.confirm", state="ready")] == []
"""


def test_project_tests_use_the_test_database_which_is_dropped_afterwards(postgres_project):
    postgres_project.add("shop/settings.py", "DATABASES['default']['CONN_MAX_AGE'] = 600\n")
    postgres_project.add("shop/tests.py", TESTS)
    postgres_project.manage("test", "shop")
    postgres_project.manage("migrate")
    seen = postgres_project.run("""
        from django.db import connection
        from holdfast.integrations.django import app
        with connection.cursor() as cursor:
            name = "test_" + connection.settings_dict["NAME"]
            cursor.execute("select count(*) from pg_database where datname = %s", [name])
            print(cursor.fetchone()[0], len(app.runs()))
    """)
    assert seen == "0 0\n"
