"""Runs in Django's admin: list, filters, details, retry and cancel with permissions, and nothing else."""

from __future__ import annotations

from tests.integrations.conftest import Project

SETTINGS = """
INSTALLED_APPS += ["django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes",
                   "django.contrib.messages", "django.contrib.sessions", "django.contrib.staticfiles"]
MIDDLEWARE = ["django.contrib.sessions.middleware.SessionMiddleware", "django.middleware.csrf.CsrfViewMiddleware",
              "django.contrib.auth.middleware.AuthenticationMiddleware",
              "django.contrib.messages.middleware.MessageMiddleware"]
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
              "OPTIONS": {"context_processors": ["django.template.context_processors.request",
                                                 "django.contrib.auth.context_processors.auth",
                                                 "django.contrib.messages.context_processors.messages"]}}]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
STATIC_URL = "static/"
"""
URLS = """
from django.contrib import admin
from holdfast.integrations.django.admin import RunAdmin
from holdfast.integrations.django.models import Run
other_site = admin.AdminSite("other")
other_site.register(Run, RunAdmin)
urlpatterns += [path("admin/", admin.site.urls), path("other/", other_site.urls)]
"""
TASKS = """

@app.task(retry=Retry(max_attempts=1))
def explode(what: str) -> None:
    raise ValueError(f"<b>{what}</b>")


@app.task
def later(what: str) -> str:
    return what


async def charge() -> str:
    return "charged"


@app.task(retry=Retry(max_attempts=1))
async def buy(ctx: Context) -> None:
    await ctx.step(charge)
    await ctx.call(explode, "child")
"""
TESTS = """
    from io import StringIO
    from django.contrib.admin.models import LogEntry
    from django.contrib.auth.models import Permission, User
    from django.contrib.staticfiles import finders
    from django.core.management import call_command
    from django.test import Client, TestCase
    from holdfast import Graph
    from holdfast.integrations.django import app
    from shop.tasks import buy, explode, later

    LIST = "/admin/holdfast/run/"
    UNKNOWN = "00000000-0000-7000-8000-000000000000"
    SCRIPT = "<script>alert(1)</script>"

    def page(run):
        return f"{LIST}{run.id}/change/"

    class AdminTests(TestCase):
        def setUp(self):
            assert not app.runs()
            self.admin = User.objects.create_superuser("root" + SCRIPT)
            self.client.force_login(self.admin)

        def user(self, *permissions):
            user = User.objects.create_user("ada", is_staff=True)
            user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
            return user

        def read(self, path, status=200, **query):
            answer = self.client.get(path, query)
            assert answer.status_code == status, (answer.status_code, path)
            return answer.content.decode()

        def do(self, path, action, *runs, status=200, **more):
            form = {"action": action, "run": [str(run.id) for run in runs], **more}
            answer = self.client.post(path, form, follow=True)
            assert answer.status_code == status, (answer.status_code, answer.content)
            return answer.content.decode()

        def test_a_list_is_filtered_and_paged(self):
            assert "No runs found." in self.read(LIST)
            runs = [later.options(key=f"k{number}", queue="slow").enqueue(f"a{number}") for number in range(51)]
            failed = explode.enqueue("x")
            app.worker(queues=["default"]).drain()
            first = self.read(LIST)
            assert str(failed.id) in first and str(runs[2].id) in first and str(runs[1].id) not in first
            older = first.split("?after=")[1].split('"')[0]
            rest = self.read(LIST, after=older)
            assert str(runs[1].id) in rest and str(runs[2].id) not in rest and "Newest runs" in rest
            for query in ({"state": "failed"}, {"task": "shop.tasks.explode"}, {"queue": "default"},
                          {"error": "ValueError"}, {"id": str(failed.id)}):
                found = self.read(LIST, **query)
                assert str(failed.id) in found and found.count('name="run"') == 1, query
            assert str(runs[7].id) in self.read(LIST, key="k7")
            assert 'class="error"' in self.read(LIST, after="no id") and 'class="error"' in self.read(LIST, state="?")

        def test_a_page_shows_a_run_with_its_steps_history_parent_and_child(self):
            run = buy.options(key="order-1", tags=["urgent"], tenant="acme").enqueue()
            app.worker().drain()
            text = self.read(page(run))
            child = app.runs(task="shop.tasks.explode")[0]
            for part in ("failed", "order-1", "urgent", "acme", "charge", str(child.id), "started", "RunFailed"):
                assert part in text, part
            assert str(run.id) in self.read(page(child))
            waiting = later.enqueue("x")
            assert "no worker" in self.read(page(waiting)).lower()
            graph = Graph("release")
            graph.add(later, "y", name="first node")
            assert "first node" in self.read(page(app.submit(graph)))
            self.read(LIST + "nonsense/change/", 404)
            self.read(f"{LIST}{UNKNOWN}/change/", 404)
            assert self.client.get(f"{LIST}{run.id}/history/").headers["Location"] == page(run)

        def test_everything_is_escaped(self):
            run = explode.options(key=SCRIPT, tags=[SCRIPT], queue="q<i>").enqueue(SCRIPT)
            app.worker(queues=["q<i>"]).drain()
            pages = [self.read(LIST), self.read(page(run)), self.do(LIST, "retry", run)]
            pages += [self.do(page(run), "retry", confirmed=1), self.read(page(run))]
            pages += [self.read(LIST, task=SCRIPT, key='"><script>')]
            for text in pages:
                assert "<script>alert" not in text and '"><script>' not in text and "<b>" not in text
            assert "&lt;script&gt;" in pages[1]

        def test_runs_are_retried_and_cancelled_after_a_confirmation(self):
            failed, done, waiting = explode.enqueue("x"), later.enqueue("y"), later.options(delay=3600).enqueue("z")
            app.worker().drain()
            text = self.do(LIST, "retry", failed, done, waiting)
            assert "Retry 1 run?" in text and "it is done" in text and "it is scheduled" in text
            assert failed.info().state == "failed"
            assert "1 run retried." in self.do(LIST, "retry", failed, confirmed=1)
            assert failed.info().state == "ready"
            assert failed.history()[-1].data["by"].endswith("(Django admin)")
            assert "Cancel 1 run?" in self.do(page(waiting), "cancel")
            assert "1 run cancelled." in self.do(page(waiting), "cancel", confirmed=1)
            assert waiting.info().state == "cancelled"
            assert [entry.change_message for entry in LogEntry.objects.order_by("id")] == ["Retried.", "Cancelled."]
            assert f'href="{page(failed)}"' in self.read("/admin/")
            assert "t retried: it is ready" in self.do(LIST, "retry", failed, confirmed=1)
            assert "None of these runs can be retried" in self.do(LIST, "retry", done)
            assert "Nothing was changed" in self.do(LIST, "retry")
            assert "Nothing was changed" in self.do(LIST, "delete_selected", done)
            assert self.client.post(LIST, {"action": "cancel", "run": "no id"}).status_code == 404
            missing = {"action": "cancel", "run": UNKNOWN, "confirmed": 1}
            assert f"Run {UNKNOWN} does not exist" in self.client.post(LIST, missing, follow=True).content.decode()
            repeated = buy.enqueue()
            app.worker().drain()
            assert "continues after 2 recorded results" in self.do(page(repeated), "retry")

        def test_permissions_decide_what_a_user_sees_and_does(self):
            run = explode.enqueue("x")
            app.worker().drain()
            self.client.logout()
            assert "/admin/login/" in self.client.get(LIST).headers["Location"]
            self.client.force_login(self.user())
            for path in (LIST, page(run)):
                self.read(path, 403)
                self.do(path, "retry", run, status=403, confirmed=1)
            assert "holdfast" not in self.read("/admin/")
            User.objects.all().delete()
            self.client.force_login(self.user("view_run"))
            assert str(run.id) in self.read(LIST) and "Runs" in self.read("/admin/")
            for path in (LIST, page(run)):
                assert 'value="retry"' not in self.read(path) and 'name="run"' not in self.read(path)
                self.do(path, "retry", run, status=403, confirmed=1)
            assert run.info().state == "failed"
            User.objects.all().delete()
            self.client.force_login(self.user("change_run"))
            assert 'value="retry"' in self.read(page(run))
            assert "1 run retried." in self.do(page(run), "retry", confirmed=1)
            assert run.history()[-1].data["by"] == "ada (Django admin)"

        def test_nothing_else_is_allowed(self):
            run = later.enqueue("x")
            for path in (f"{LIST}add/", f"{LIST}{run.id}/delete/"):
                self.read(path, 403)
                assert self.client.post(path, {"id": str(run.id)}).status_code == 403
            assert "run/add/" not in self.read("/admin/") + self.read(LIST)
            strict = Client(enforce_csrf_checks=True)
            strict.force_login(self.admin)
            for path in (LIST, page(run)):
                assert strict.post(path, {"action": "cancel", "run": str(run.id), "confirmed": 1}).status_code == 403
            assert run.info().state == "ready"

        def test_another_admin_site_links_to_itself(self):
            run = later.enqueue("x")
            text = self.read("/other/holdfast/run/") + self.read(f"/other/holdfast/run/{run.id}/change/")
            assert f"/other/holdfast/run/{run.id}/change/" in text and 'href="/admin/' not in text

        def test_the_model_needs_no_table_and_no_migration(self):
            output = StringIO()
            call_command("makemigrations", dry_run=True, stdout=output)
            for everything in (False, True):
                call_command("dumpdata", use_base_manager=everything, stdout=output)
            assert '"auth.user"' in output.getvalue() and "holdfast" not in output.getvalue().replace('"holdfast"', "")
            assert finders.find("holdfast/admin.css")
"""


def test_the_admin_shows_runs_and_lets_permitted_users_retry_and_cancel(project: Project):
    project.add("shop/settings.py", SETTINGS)
    project.add("shop/urls.py", URLS)
    project.add("shop/tasks.py", TASKS)
    project.add("shop/admin_tests.py", TESTS)
    project.manage("test", "shop.admin_tests")
