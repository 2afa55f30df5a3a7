"""`fork`, `send` and `emit`, and `cancel`, on durable functions under way."""

from __future__ import annotations

from uuid import UUID

import pytest

from holdfast import Context, Holdfast
from tests.support.durable import drain


def test_fork_prints_the_id_of_a_run_that_goes_on_from_there(shell, voyages):
    result = shell("fork", voyages.failed, "--from", "load", "--args", '{"to": "Rhodes"}', "--app", voyages.target)
    assert (result.exit_code, result.stderr) == (0, "")
    fork = UUID(result.stdout.strip())
    voyages.work()
    assert voyages.state(fork) == "waiting"
    assert voyages.state(voyages.failed) == "failed"
    assert shell.json("show", fork, "--url", voyages.url)["args"] == {"to": "Rhodes"}


def test_fork_takes_the_beginning_of_an_id_arguments_by_position_and_no_code(shell, voyages):
    told = shell.json("fork", str(voyages.failed)[:-1], "--args", '["Rhodes"]', "--url", voyages.url)
    assert told == {
        "id": told["id"],
        "task": voyages.task,
        "forked": str(voyages.failed),
        "from_step": None,
        "from_failed": False,
    }
    voyages.work()
    assert voyages.state(UUID(told["id"])) == "waiting"


def test_fork_of_an_unfinished_run_says_that_it_goes_on(shell, voyages):
    result = shell("fork", voyages.waiting, "--from", "load", "--url", voyages.url)
    assert result.exit_code == 0
    assert f"run {voyages.waiting} is waiting and continues" in result.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--from", "unload"], "has not recorded a step 'unload': it has load, map voyage"),
        (["--from", "sink"], "has not recorded a step 'sink'"),
        (["--from", ""], "must not be empty"),
        (["--args", '{"too": 1}'], "missing a required argument: 'to'"),
        (["--args", "[1]"], "Expected `str`, got `int`"),
    ],
)
def test_impossible_fork_says_why_and_creates_nothing(shell, voyages, words, says):
    before = len(shell.json("runs", "--url", voyages.url))
    result = shell("fork", voyages.failed, *words, "--app", voyages.target)
    assert result.exit_code == 2
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert len(shell.json("runs", "--url", voyages.url)) == before


def test_retry_with_other_arguments_starts_over(shell, voyages):
    args = ("--args", '{"to": "Rhodes"}', "--app", voyages.target)
    preview = shell("retry", voyages.failed, "--dry-run", *args)
    assert "it starts from the beginning with the new arguments" in preview.stdout
    assert "load: was undone, and runs again with a new idempotency key" in preview.stdout
    wrong = shell("retry", voyages.failed, "--args", "[1]", "--app", voyages.target)
    assert (wrong.exit_code, "Expected `str`, got `int`" in wrong.stderr) == (1, True)
    result = shell("retry", voyages.failed, *args, "--by", "ada")
    assert (result.exit_code, result.stdout) == (0, f"{voyages.failed}  starts over with the new arguments\n")
    voyages.work()
    shown = shell.json("show", voyages.failed, "--url", voyages.url)
    assert (shown["args"], shown["state"], shown["restarts"]) == ({"to": "Rhodes"}, "waiting", 1)
    assert "retried" in (text := shell("show", voyages.failed, "--url", voyages.url).stdout)
    assert "starts over with other arguments" in text
    again = shell("retry", voyages.failed, *args)
    assert (again.exit_code, "only a failed or cancelled run" in again.stderr) == (1, True)


def test_update_changes_runs_that_have_not_started(shell, voyages):
    id = str(voyages.app.registry.get(voyages.task).options(delay=3600).enqueue("Brest").id)
    changed = shell("update", id, "--priority", "5", "--run-at", "2h", "--args", '["Rhodes"]', "--tag", "night",
                    "--tag", "slow", "--app", voyages.target)  # fmt: skip
    assert (changed.exit_code, changed.stdout) == (0, f"{id}  changed\n")
    shown = shell.json("show", id, "--url", voyages.url)
    assert (shown["priority"], shown["tags"], shown["args"]) == (5, ["night", "slow"], {"to": "Rhodes"})
    assert "priority, time, arguments, tags" in shell("show", id, "--url", voyages.url).stdout
    refused = shell("update", voyages.waiting, "--priority", "5", "--url", voyages.url)
    assert (refused.exit_code, "only the time of a scheduled retry or of a sleep" in refused.stderr) == (1, True)


@pytest.mark.parametrize("words", [["fork", "ffff"], ["send", "ffff", "orders"]], ids=" ".join)
def test_missing_run_is_reported(shell, voyages, words):
    result = shell(*words, "--url", voyages.url)
    assert result.exit_code == 2
    assert "no run id starts with ffff" in result.stderr


@pytest.mark.parametrize("words", [["fork", "ffff"], ["send", "ffff", "orders"]], ids=" ".join)
def test_in_empty_tables_there_is_no_run_either(shell, empty, words):
    result = shell(*words, "--url", empty)
    assert result.exit_code == 2
    assert "no run id starts with ffff" in result.stderr


def test_send_and_emit_bring_a_run_to_its_end(shell, voyages):
    sent = shell("send", voyages.waiting, "orders", '{"speed": 9}', "--url", voyages.url)
    assert (sent.exit_code, sent.stdout, sent.stderr) == (0, f"{voyages.waiting}  message sent on topic orders\n", "")
    emitted = shell("emit", "lighthouse-Brest", '"seen: "', "--url", voyages.url)
    assert (emitted.exit_code, emitted.stdout) == (0, "lighthouse-Brest  emitted; no run was waiting for it\n")
    voyages.work()
    assert voyages.app.get_run(voyages.waiting).info().result == "seen: {'speed': 9}"


def test_a_payload_that_is_left_out_is_null_and_one_with_a_minus_needs_dashes(shell, voyages):
    assert shell.json("send", voyages.waiting, "orders", "--url", voyages.url) == {
        "run": str(voyages.waiting), "topic": "orders"
    }  # fmt: skip
    assert shell("emit", "cold", "--url", voyages.url, "--", "-3").exit_code == 0
    voyages.work()
    steps = shell.json("show", voyages.waiting, "--url", voyages.url)["steps"]
    assert [step["value"] for step in steps if step["kind"] == "message"] == [None]


def test_message_on_another_topic_is_kept_with_a_note(shell, voyages):
    result = shell("send", voyages.waiting, "order", "1", "--url", voyages.url)
    assert result.exit_code == 0
    assert "waits for a message on orders, not on order" in result.stderr


def test_a_finished_run_gets_no_messages(shell, voyages):
    result = shell("send", voyages.failed, "orders", "1", "--url", voyages.url)
    assert result.exit_code == 2
    assert f"run {voyages.failed} is failed; only unfinished runs receive messages: retry it first" in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_second_emit_changes_nothing_and_says_so(shell, empty):
    assert shell.json("emit", "dawn", "1", "--url", empty) == {
        "event": "dawn", "tenant": None, "first": True, "awaited_elsewhere": []
    }  # fmt: skip
    again = shell("emit", "dawn", "2", "--url", empty)
    assert (again.exit_code, again.stdout) == (0, "dawn  already emitted; nothing changed\n")
    assert shell.json("emit", "dawn", "--tenant", "acme", "--url", empty)["first"] is True


def test_messages_that_were_set_aside_are_shown_and_sent_again(shell, empty):
    with Holdfast(empty) as app:

        @app.task(name="numbers")
        async def numbers(ctx: Context) -> list[int]:
            return [await ctx.receive("n", type=int), await ctx.receive("n", type=int)]

        run = numbers.enqueue()
        for payload in ("one", "two"):
            run.send("n", payload)
        drain(app)
        shown = shell("show", run.id, "--url", empty).stdout
        assert 'message 1 on topic n: "one"' in shown
        assert f"holdfast resend {run.id} 1 [PAYLOAD]" in shown
        assert "set aside" in shown.partition("\nhistory")[2]
        sent = shell("resend", run.id, "1", "1", "--url", empty)
        assert (sent.exit_code, sent.stdout) == (0, f"{run.id}  message 1 sent again on topic n\n")
        assert shell.json("resend", run.id, "--url", empty) == {
            "run": str(run.id), "sent": [{"message": 2, "topic": "n"}],
        }  # fmt: skip
        assert shell("resend", run.id, "1", "--url", empty).exit_code == 2
        drain(app)
        (left,) = shell.json("show", run.id, "--url", empty)["set_aside"]
        assert (left["n"], left["payload"]) == (4, "two")
        shell("resend", run.id, "4", "2", "--url", empty)
        drain(app)
        assert run.result(timeout=5) == [1, 2]
        assert "no messages were set aside" in shell("resend", run.id, "--url", empty).stdout


@pytest.mark.parametrize("words", [["emit", ""], ["emit", "a\x1bb"], ["emit", "dawn", "--tenant", ""]])
def test_invalid_event_is_rejected(shell, empty, words):
    result = shell(*words, "--url", empty)
    assert result.exit_code == 2
    assert "must not" in result.stderr


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        (["fork", "{waiting}", "--from", "l"], "load"),
        (["fork", "{waiting}", "--from", "sl"], "sleep tide"),
        (["send", "{waiting}", "o"], "orders"),
        (["show", "{beginning}"], "{waiting}"),
    ],
)
def test_runs_steps_and_topics_are_completed(shell, voyages, monkeypatch, line, completed):
    from click.shell_completion import ShellComplete

    from holdfast.cli.commands import holdfast

    monkeypatch.setenv("HOLDFAST_URL", voyages.url)
    names = {"waiting": str(voyages.waiting), "beginning": str(voyages.waiting)[:-1]}
    *before, typed = [word.format(**names) for word in line]
    found = ShellComplete(holdfast, {}, "holdfast", "_HOLDFAST_COMPLETE").get_completions(before, typed)
    assert [item.value for item in found] == [completed.format(**names)]


def test_cancel_says_when_a_run_has_to_undo_first(shell, voyages):
    result = shell("cancel", voyages.waiting, voyages.undoing, voyages.failed, "--url", voyages.url)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"{voyages.waiting}  undoing; cancelled when its compensations have run",
        f"{voyages.undoing}  already undoing",
        f"{voyages.failed}  already finished: failed",
    ]
    voyages.work()
    assert voyages.state(voyages.waiting) == "cancelled"
