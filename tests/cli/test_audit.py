"""`holdfast audit`, and what commands record."""

from __future__ import annotations


def test_commands_are_recorded_and_listed(shell, database_url):
    url = ("--url", database_url)
    run = shell("enqueue", "shop.charge", 42, "--remote", *url).stdout.strip()
    shell("pause", "mail", "--by", "ada", *url)
    shell("pause", "mail", "--by", "ada", *url)
    shell("cancel", run, "--by", "ada", "--reason", "twice", *url)
    shell("token", "create", "--role", "viewer", "--name", "screen", *url)
    found = shell.json("audit", *url)["entries"]
    assert [(each["action"], each["subject"], each["outcome"]) for each in found] == [
        ("create token", "screen", "done"),
        ("cancel run", run, "done"),
        ("pause queue", "mail", "unchanged"),
        ("pause queue", "mail", "done"),
        ("enqueue run", "shop.charge", "done"),
    ]
    assert {each["via"] for each in found} == {"cli"}
    assert {each["by"] for each in found[1:4]} == {"ada"}
    assert "@" in found[0]["by"]
    table = shell("audit", "--by", "ada", "--limit", 1, *url)
    assert "reason: twice" in table.stdout
    assert "more entries: --after" in table.stderr
    assert "no entries" in shell("audit", "--subject", "none", *url).stderr
    wrong = shell("audit", "--since", "soon", *url)
    assert wrong.exit_code == 2
