"""`holdfast dashboard` and `holdfast token`."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

pytestmark = pytest.mark.no_tables


def test_a_token_is_printed_once_and_listed_without_its_secret(shell, empty):
    asked = ("--operate", "--tenant", "acme", "--name", "ada")
    made = json.loads(shell("token", "create", *asked, "--json", "--url", empty).stdout)
    assert (made["roles"], made["tenant"], made["name"]) == (["approver", "operator"], "acme", "ada")
    listed = shell("token", "list", "--url", empty).stdout
    assert made["id"] in listed
    assert made["token"] not in listed
    assert "revoked" in shell("token", "revoke", made["id"], "--url", empty).stdout
    assert "already revoked" in shell("token", "revoke", made["id"], "--url", empty).stdout
    assert json.loads(shell("token", "list", "--json", "--url", empty).stdout)[0]["revoked_at"] is not None


def test_token_has_roles_a_scope_and_a_lifetime(shell, empty):
    asked = ("--role", "operator", "--tenant", "acme", "--task", "mail.*", "--queue", "low", "--max-priority", "5")
    shown = shell("token", "create", *asked, "--expires", "8h", "--url", empty)
    assert "operator, limited to tenant acme, tasks mail.*, queues low, priority up to 5; expires 20" in shown.stderr
    (listed,) = json.loads(shell("token", "list", "--json", "--url", empty).stdout)
    assert (listed["tasks"], listed["queues"], listed["max_priority"]) == (["mail.*"], ["low"], 5)
    assert "does not expire" in shell("token", "create", "--read", "--expires", "never", "--url", empty).stderr
    table = shell("token", "list", "--url", empty).stdout
    assert "in 7 h" in table or "in 8 h" in table, table
    for wrong in (("--expires", "soon"), ("--role", "root"), ("--task", "a*b"), ("--max-priority", "high")):
        assert shell("token", "create", "--role", "admin", *wrong, "--url", empty).exit_code == 2


@pytest.mark.parametrize("secret", ["short", "x" * 31])
def test_token_of_the_process_has_a_minimum_length(shell, empty, secret, monkeypatch):
    monkeypatch.setenv("HOLDFAST_TOKEN", secret)
    result = shell("dashboard", "--url", empty)
    assert (result.exit_code, "at least 32 characters" in result.stderr) == (2, True)
    assert secret not in result.stderr


def test_revoking_the_last_token_says_that_nobody_can_log_in(shell, empty):
    first, last = (json.loads(shell("token", "create", "--read", "--json", "--url", empty).stdout)["id"] for _ in "12")
    assert "nobody can log in" not in shell("token", "revoke", first, "--url", empty).stderr
    assert "nobody can log in" in shell("token", "revoke", last, "--url", empty).stderr
    assert "nobody can log in" not in shell("token", "revoke", last, "--url", empty).stderr


@pytest.mark.parametrize("said", [(), ("--read", "--operate"), ("--role", "viewer", "--read")])
def test_token_needs_a_role(shell, empty, said):
    result = shell("token", "create", *said, "--url", empty)
    assert (result.exit_code, "--role, --read or --operate" in result.stderr) == (2, True)
    assert json.loads(shell("token", "list", "--json", "--url", empty).stdout) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1", "::", "ops.example.org"])
def test_non_loopback_address_needs_a_token(shell, empty, host, monkeypatch):
    monkeypatch.delenv("HOLDFAST_TOKEN", raising=False)
    result = shell("dashboard", "--host", host, "--url", empty)
    assert (result.exit_code, "a token is required" in result.stderr) == (2, True)


def test_allowed_host_needs_a_valid_token(shell, empty, monkeypatch):
    """A dashboard with an allowed host is meant for others, usually behind a proxy on the same machine."""
    monkeypatch.delenv("HOLDFAST_TOKEN", raising=False)
    asked = ("dashboard", "--allow-host", "ops.example.org", "--url", empty)
    for _ in range(2):
        result = shell(*asked)
        assert (result.exit_code, "a token is required" in result.stderr) == (2, True)
        revoked = shell("token", "create", "--read", "--url", empty).stdout.split("_")[1]
        assert shell("token", "revoke", revoked, "--url", empty).exit_code == 0


@pytest.mark.parametrize("host", ["https://ops.example.org", "ops.example.org:80", "ops.example.org.", "a@b", "", "é"])
def test_allowed_host_must_be_a_host_name(shell, empty, host, monkeypatch):
    monkeypatch.setenv("HOLDFAST_TOKEN", "x" * 40)
    result = shell("dashboard", "--allow-host", host, "--url", empty)
    assert (result.exit_code, "is not a host name" in result.stderr) == (2, True)


def test_a_database_without_tables_names_migrate(shell, database_url):
    result = shell("dashboard", "--url", database_url)
    assert result.exit_code == 2


def test_port_in_use_is_reported_in_one_line(shell, empty):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = shell("dashboard", "--port", str(taken.getsockname()[1]), "--url", empty)
    assert (result.exit_code, "use another --port" in result.stderr) == (2, True)


def test_dashboard_serves_until_stopped(shell, empty):
    environment = {name: value for name, value in os.environ.items() if name != "HOLDFAST_TOKEN"}
    command = [sys.executable, "-m", "holdfast.cli", "dashboard", "--port", "0", "--url", empty]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as served:
        assert served.stderr is not None
        address = re.search(r"http://\S+/", served.stderr.readline())
        assert address is not None
        with urllib.request.urlopen(address[0] + "runs", timeout=60) as answer:
            assert (answer.status, b"No runs yet" in answer.read()) == (200, True)
        served.send_signal(signal.SIGTERM)
        assert served.wait(60) in (0, -signal.SIGTERM)
