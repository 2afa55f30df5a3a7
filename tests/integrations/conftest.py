"""Fixtures: the Django project of the guide, on either database."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.support.processes import Process, Processes, run_python

ROOT = Path(__file__).parent.parent.parent
GUIDE = ROOT / "docs" / "integrations" / "django.md"
FILE = re.compile(r"^```python notest (?P<path>\S+\.py)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
MANAGE = """
import os, sys
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
from django.core.management import execute_from_command_line
execute_from_command_line(sys.argv)
"""
MIGRATION = """
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    fields = [
        ("id", models.BigAutoField(primary_key=True)),
        ("item", models.CharField(max_length=100)),
        ("shipped", models.BooleanField(default=False)),
    ]
    operations = [migrations.CreateModel(name="Order", fields=fields)]
"""
SQLITE = """
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": BASE_DIR / "django.db"}}
HOLDFAST["URL"] = f"sqlite:///{BASE_DIR / 'holdfast.db'}"
"""


class Project:
    """The files of the guide in a folder, and its `manage.py`."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self._processes = Processes(folder)
        for match in FILE.finditer(GUIDE.read_text()):
            self.add(match["path"], match["code"])
        self.add("shop/__init__.py", "")
        self.add("manage.py", MANAGE)
        self.add("shop/settings.py", SQLITE if url.startswith("sqlite") else postgres_settings(url))
        self.add("shop/migrations/__init__.py", "")
        self.add("shop/migrations/0001_initial.py", MIGRATION)

    def add(self, path: str, code: str) -> None:
        """Write a file, or append to an existing one."""
        file = self.folder / path
        file.parent.mkdir(exist_ok=True, parents=True)
        with file.open("a") as output:
            output.write(dedent(code))

    def manage(self, *words: object, ok: bool = True) -> str:
        """Run `manage.py` and return its output."""
        return self._python("manage.py", *words, ok=ok)

    def run(self, code: str, *, ok: bool = True) -> str:
        """Run a program of the project with Django set up; return its output."""
        setup = "import os, django\nos.environ.setdefault('DJANGO_SETTINGS_MODULE', 'shop.settings')\ndjango.setup()\n"
        return self._python("-c", setup + dedent(code), ok=ok)

    def start(self, *words: object) -> Process:
        return self._processes.start("manage.py", *words, cwd=self.folder)

    def _python(self, *words: object, ok: bool) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST", "DJANGO"))}
        outcome = run_python(*words, cwd=self.folder, env=environment, timeout=120)
        assert (outcome.returncode == 0) is ok, outcome.stdout + outcome.stderr
        return outcome.stdout if ok else outcome.stdout + outcome.stderr

    def close(self) -> None:
        self._processes.close()


def postgres_settings(url: str) -> str:
    given = conninfo_to_dict(url)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    named = {ours: str(given.get(theirs) or "") for ours, theirs in names.items()}
    return f"\nDATABASES['default'] |= {named!r}\n"


@pytest.fixture
def project(tmp_path: Path, database_url: str) -> Iterator[Project]:
    """The project on each of the databases."""
    made = Project(tmp_path, database_url)
    yield made
    made.close()


@pytest.fixture
def postgres_project(tmp_path: Path, postgres_url: str) -> Iterator[Project]:
    made = Project(tmp_path, postgres_url)
    yield made
    made.close()


@pytest.fixture
def sqlite_project(tmp_path: Path, sqlite_url: str) -> Iterator[Project]:
    made = Project(tmp_path, sqlite_url)
    yield made
    made.close()
