"""Graphs in the CLI: `show` renders them, `gate` decides gates, other commands handle them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Literal
from uuid import UUID

import pytest

from holdfast import Graph, Holdfast, Retry
from holdfast.cli.render_graph import quoted
from tests.cli.conftest import EVIL
from tests.cli.test_all_commands import on_a_terminal

ODD = 'say "it" [now] <b> & %% `x` # \u202eend'


class Yard:
    """Graphs: one waits for gates, one has failed; and a plain job."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app = app = Holdfast(url)
        self.mended = False

        @app.task(name="cut", retry=Retry(max_attempts=1))
        def cut(planks: int) -> dict[str, int]:
            if planks == 13 and not self.mended:
                raise ValueError(EVIL)
            return {"planks": planks}

        self.cut = cut
        self.open = app.submit(self._boat(8)).id
        self.failed = app.submit(self._boat(13)).id
        self.job = cut.enqueue(1).id
        self.work()

    def _boat(self, planks: int) -> Graph:
        g = Graph("boat")
        hull = g.add(self.cut, planks, name="hull")
        mast = g.add(self.cut, hull.output["planks"], name="mast")
        ready = g.gate("launch", after=[mast], type=int, timeout=3600)
        g.add(self.cut, ready.output, name="sail")
        g.add(self.cut, 1, after=[hull.failed], name="repair")
        g.add(self.cut, 1, when=mast.output["planks"] > 100, name=ODD)
        inner = Graph("crew")
        inner.gate("hire")
        g.add(inner, after=[mast], name="crew")
        return g

    def work(self) -> None:
        self.app.worker().drain(timeout=60)

    def states(self, id: UUID) -> dict[str, str]:
        return {name: info.state for name, info in self.app.get_run(id).nodes().items()}


@pytest.fixture
def yard(shell, database_url) -> Iterator[Yard]:
    yard = Yard(database_url)
    yield yard
    yard.app.close()


def fields(text):
    top = text.partition("\n\n")[0]
    return dict(re.split(r"  +", line, maxsplit=1) for line in top.splitlines() if not line.startswith(" "))


def drawn(text):
    return text.partition("\nnodes\n")[2].partition("\n\nhistory\n")[0].splitlines()


# show


def test_show_draws_the_layers_of_a_graph_with_states_and_what_is_waited_for(shell, yard):
    result = shell("show", yard.open, "--url", yard.url)
    assert result.exit_code == 0
    told = fields(result.stdout)
    assert (told["state"], told["graph"]) == ("waiting", "boat")
    assert told["nodes"] == "7 nodes: 2 waiting, 2 skipped, 1 blocked, 2 done"
    assert not {"task", "queue", "arguments", "attempt"} & set(told)
    lines = [re.split(r"  +", line.strip()) for line in drawn(result.stdout)]
    assert [line[0] for line in lines if line[0].startswith("layer")] == ["layer 1", "layer 2", "layer 3", "layer 4"]
    by_name = {line[0]: line[1:] for line in lines}
    assert by_name["mast"][0::2] == ["done", "after hull"]
    assert by_name["sail"] == ["blocked", "waits for launch"]
    assert by_name["repair"] == ["skipped", "its condition wasn't true"]
    assert ["only if hull.failed"] in lines
    assert by_name["launch"][:2] == ["waiting", "gate"]
    assert re.fullmatch(r"open since .*(ago|now)\), fails in 59 min", by_name["launch"][2])
    assert lines[lines.index(["crew", "waiting", "graph crew", "after mast"]) + 1][:2] == ["hire", "waiting"]


def test_open_gates_are_named_on_top_with_the_command_that_completes_them(shell, yard):
    told = shell("show", yard.open, "--url", yard.url).stdout
    commands = [line.strip().split()[1:] for line in told.splitlines() if line.strip().startswith("holdfast gate")]
    launch, hire = commands
    assert launch == ["gate", str(yard.open), "launch", "complete", "OUTPUT"]
    assert shell(*launch[:-1], "8", "--url", yard.url).exit_code == 0
    assert shell(*hire, "--url", yard.url).exit_code == 0
    yard.work()
    done = fields(shell("show", yard.open, "--url", yard.url).stdout)
    assert done["state"] == "done"
    assert json.loads(done["result"])["sail"] == {"planks": 8}


def test_failures_and_skips_are_told_with_their_causes(shell, yard):
    result = shell("show", yard.failed, "--url", yard.url)
    told = fields(result.stdout)
    assert told["state"] == "failed"
    assert "node hull failed" in told["error"]
    lines = drawn(result.stdout)
    at = next(at for at, line in enumerate(lines) if line.strip().startswith("hull"))
    assert lines[at].endswith(f"run {yard.app.get_run(yard.failed).nodes()['hull'].id}")
    assert "ValueError" in lines[at + 1]
    assert any(re.search(r"mast +skipped +node hull failed", line) for line in lines)


def test_node_is_shown_by_name_with_its_graph(shell, yard):
    told = fields(shell("show", yard.open, "sail", "--url", yard.url).stdout)
    assert (told["node"], told["parent"], told["state"]) == ("sail of graph boat", f"{yard.open} (boat)", "blocked")
    assert told["waiting for"] == "node launch (waiting)"
    assert "outputs of dependencies are pending" in told["arguments"]
    gate = fields(shell("show", yard.open, "crew", "hire", "--url", yard.url).stdout)
    assert (gate["gate"], gate["node"]) == ("hire", "hire of graph crew")
    assert gate["waiting for"].startswith("approval, open since")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["{open}", "keel"], "has no node 'keel'"),
        (["{open}", "hull", "x"], "is node hull of graph run"),
        (["{job}", "x"], "is a run of cut, not a graph"),
        (["{job}", "--mermaid"], "is a run of cut, not a graph"),
        (["{open}", "sail", "--mermaid"], "not a graph"),
        (["{open}", "--mermaid", "--json"], "--mermaid or --json, not both"),
        (["ffff", "--mermaid"], "no run id starts with ffff"),
    ],
)
def test_missing_node_is_reported_in_one_line(shell, yard, words, says):
    result = shell("show", *[word.format(open=yard.open, job=yard.job) for word in words], "--url", yard.url)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr
    assert result.stderr.count("\n") == 1


def test_as_json_there_are_all_nodes_gates_and_edges(shell, yard):
    told = shell.json("show", yard.open, "--url", yard.url)
    assert (told["kind"], told["children"], told["graph"]["counts"]["done"]) == ("graph", [], 2)
    nodes = {node["name"]: node for node in told["graph"]["nodes"]}
    assert nodes["sail"]["needs"] == {"launch": "done"}
    assert nodes["repair"]["needs"] == {"hull": "failed"}
    assert (nodes[ODD]["error"]["code"], nodes[ODD]["layer"]) == ("condition", 3)
    assert nodes["crew"]["graph"]["nodes"][0]["name"] == "hire"
    assert [gate["name"] for gate in told["graph"]["gates"]] == ["launch", "hire"]
    node = shell.json("show", nodes["sail"]["id"], "--url", yard.url)
    assert (node["node"], node["node_of"], node["needs"], node["graph"]) == (
        "sail", "boat", {"launch": "waiting"}, None
    )  # fmt: skip


@pytest.mark.parametrize("columns", [80, 120])
def test_graph_tree_fits_the_terminal_and_is_escaped(shell, yard, columns):
    for id in (yard.open, yard.failed):
        code, written = on_a_terminal(shell, "show", str(id), "--url", yard.url, COLUMNS=str(columns), NO_COLOR="1")
        assert code == 0
        assert not any(sequence in written for sequence in ("\x1b[2J", "\x1b]0;", "\x07", "\u202e", "\x9b"))
        tree = drawn(written.replace("\r", ""))
        assert max(map(len, tree)) <= columns
        assert "├── " in "\n".join(tree)


def test_a_large_graph_is_shortened_to_what_is_not_done(shell, yard):
    g = Graph("fleet")
    for n in range(6):
        g.gate(f"berth-{n}")
    boats = [g.add(yard.cut, 13 if n == 77 else n + 20, name=f"boat-{n}") for n in range(200)]
    g.add(yard.cut, 1, after=boats, name="parade")
    last = g.add(yard.cut, 1, name="c0")
    for n in range(1, 60):
        last = g.add(yard.cut, 1, after=[last], name=f"c{n}")
    wait = g.gate("wait", after=[last])
    for n in range(60, 100):
        wait = g.add(yard.cut, 1, after=[wait], name=f"c{n}")
    run = yard.app.submit(g)
    yard.work()
    lines = [line.strip() for line in drawn(shell("show", run.id, "--url", yard.url).stdout)]
    assert len(lines) < 25
    assert lines[0] == "layer 1  207 nodes: 1 failed, 6 waiting, 200 done"
    assert re.match(r"boat-77 +failed", lines[1]), "failed ones first, be they added last"
    assert [line.split()[0] for line in lines[3:7]] == ["berth-0", "berth-1", "berth-2", "berth-3"]
    assert lines[7] == "… and 2 waiting, 200 done"
    assert "layers 3 to 60  58 nodes: 58 done" in lines
    assert any(re.match(r"wait +waiting +gate", line) for line in lines)
    assert "layers 62 to 101  40 nodes: 40 blocked" in lines


def test_mermaid_is_a_flowchart_with_classes_in_which_names_can_do_nothing(shell, yard):
    result = shell("show", yard.open, "--mermaid", "--url", yard.url)
    assert (result.exit_code, result.stderr) == (0, "")
    lines = [line.strip() for line in result.stdout.splitlines()]
    assert lines[0] == "flowchart TD"
    assert lines[1:4] == [
        'n1["hull<br/>done"]:::done', 'n2["mast<br/>done"]:::done', 'n3{{"launch<br/>waiting"}}:::waiting'
    ]  # fmt: skip
    assert {"n1 --> n2", "n1 -->|failed| n5", "n2 -.-> n6", "n2 --> n7"} <= set(lines)
    assert 'subgraph n7["crew<br/>waiting"]' in lines
    assert 'n7_1{{"hire<br/>waiting"}}:::waiting' in lines
    assert any(line.startswith("classDef waiting fill:") for line in lines)
    text = r'"[^"\[\]{}`%\u202e]*"'
    shape = re.compile(
        rf"n[\d_]+(\[{text}\]|\{{\{{{text}\}}\}}):::\w+|subgraph n\d+\[{text}\]|end|class \w+ \w+|flowchart TD"
        r"|n[\d_]+ (-->|-->\|\w+\||-\.->) n[\d_]+|classDef \w+ [\w:#,. -]+"
    )
    assert [line for line in lines if not shape.fullmatch(line)] == []


def test_mermaid_syntax_is_escaped():
    assert quoted('a"b') == "a#34;b"
    assert quoted("<br/>`#%") == "#60;br/#62;#96;#35;#37;"
    assert quoted("Zoë 3.1-a_b") == "Zoë 3.1-a_b"


def test_more_arrows_than_mermaid_draws_are_remarked_on(shell, yard):
    g = Graph("wide")
    nodes = [g.add(yard.cut, n, name=f"n{n}") for n in range(501)]
    g.add(yard.cut, 1, after=nodes, name="last")
    run = yard.app.submit(g)
    assert "501 edges" in shell("show", run.id, "--mermaid", "--url", yard.url).stderr


# gate


def test_a_link_to_a_gate_is_printed_alone(shell, yard, monkeypatch):
    words = ["gate", str(yard.open), "launch", "link", "--url", yard.url]
    monkeypatch.delenv("HOLDFAST_SECRET", raising=False)
    missing = shell(*words)
    assert (missing.exit_code, missing.stdout) == (2, "")
    assert "$HOLDFAST_SECRET" in missing.stderr
    monkeypatch.setenv("HOLDFAST_SECRET", "s" * 32)
    monkeypatch.setenv("HOLDFAST_PUBLIC_URL", "https://ops.example.org/")
    told = shell(*words, "--expires", "2h", "--recipient", "ada")
    assert re.fullmatch(r"https://ops\.example\.org/links/gate\?token=[\w-]+\n", told.stdout)
    assert "valid until" in told.stderr
    link = json.loads(shell(*words, "--json").stdout)
    assert set(link) == {"id", "url", "expires_at", "recipient"}
    assert "s" * 32 not in told.stdout + told.stderr
    for wrong in (["complete", "5", "--expires", "2h"], ["link", "5"], ["link", "--by", "ada"], ["--recipient", "x"]):
        assert shell("gate", str(yard.open), "launch", *wrong, "--url", yard.url).exit_code == 2
    monkeypatch.setenv("HOLDFAST_SECRET", "short-secret")
    short = shell(*words)
    assert (short.exit_code, "short-secret" in short.stderr) == (2, False)


def test_a_gate_is_completed_once_and_says_so(shell, yard):
    words = ["gate", str(yard.open)[:-1], "launch", "complete", "5"]
    first = shell(*words, "--by", "ada", "--url", yard.url)
    assert (first.exit_code, first.stdout, first.stderr) == (0, "launch  completed\n", "")
    again = shell(*words, "--url", yard.url)
    assert (again.exit_code, again.stdout) == (0, "launch  already completed; nothing changed\n")
    assert shell.json(*words, "--url", yard.url) == {
        "run": str(yard.open), "gate": "launch", "outcome": "complete", "changed": False, "state": "done"
    }  # fmt: skip
    assert "completed    by ada" in shell("show", yard.open, "launch", "--url", yard.url).stdout
    yard.work()
    assert yard.states(yard.open)["sail"] == "done"


def test_a_gate_fails_with_a_text_or_without(shell, yard):
    assert shell("gate", yard.open, "launch", "fail", "no wind", "--url", yard.url).stdout == "launch  failed\n"
    told = shell("show", yard.open, "launch", "--url", yard.url).stdout
    assert "GateFailed: no wind (gate)" in told
    assert re.search(r"failed +by \S+@\S+", told)
    crew = yard.app.get_run(yard.open).nodes()["crew"].id
    assert shell("gate", crew, "hire", "fail", "--url", yard.url).exit_code == 0
    assert "no reason given" in shell("show", crew, "hire", "--url", yard.url).stdout
    assert yard.states(yard.open)["sail"] == "skipped"


def test_early_decision_is_kept(shell, yard):
    g = Graph("two")
    first = g.gate("first")
    g.gate("second", after=[first])
    run = yard.app.submit(g)
    early = shell("gate", run.id, "second", "complete", "1", "--url", yard.url)
    assert early.stdout == "second  not open yet; will be completed when it opens\n"
    assert "second  blocked" in shell("gate", run.id, "--url", yard.url).stdout
    assert "will be completed when it opens" in shell("show", run.id, "--url", yard.url).stdout
    assert shell("gate", run.id, "first", "complete", "--url", yard.url).exit_code == 0
    assert yard.states(run.id) == {"first": "done", "second": "done"}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["{open}", "launch", "complete", "soon"], """OUTPUT is not valid JSON"""),
        (["{open}", "launch", "complete", '"soon"'], "must be an integer"),
        (["{open}", "launch", "open"], "'complete', 'fail'"),
        (["{open}", "lunch", "complete"], "has no gate 'lunch': its gates are launch"),
        (["{open}", "lunch"], "has no gate 'lunch'"),
        (["{open}", "hull", "complete"], "is not a gate"),
        (["{open}", "launch", "complete", "5", "--by", ""], "by must not be empty"),
        (["{failed}", "launch", "complete", "5"], "is skipped: it can no longer be completed"),
        (["{job}"], "is a run of cut, not a graph"),
        (["{job}", "launch", "complete"], "is not a graph"),
        (["ffff"], "no run id starts with ffff"),
        (["ffff", "launch", "complete"], "no run id starts with ffff"),
    ],
)
def test_invalid_gate_command_is_reported_in_one_line(shell, yard, words, says):
    names = {"open": yard.open, "failed": yard.failed, "job": yard.job}
    result = shell("gate", *[word.format(**names) for word in words], "--url", yard.url)
    assert (result.exit_code, result.stdout) == (2, "")
    assert says in result.stderr
    assert result.stderr.count("\n") == 1
    assert yard.states(yard.open)["launch"] == "waiting"


def test_conflicting_decision_is_rejected(shell, yard):
    shell("gate", yard.open, "launch", "complete", "5", "--url", yard.url)
    for words in (["complete", "6"], ["fail"]):
        result = shell("gate", yard.open, "launch", *words, "--url", yard.url)
        assert result.exit_code == 2
        assert "was completed" in result.stderr


def test_gates_are_listed_with_those_of_graphs_within(shell, yard):
    lines = shell("gate", yard.open, "--url", yard.url).stdout.splitlines()
    crew = yard.app.get_run(yard.open).nodes()["crew"].id
    assert [line.split()[:3] for line in lines] == [
        ["GATE", "STATE", "GRAPH"], ["launch", "waiting", str(yard.open)], ["hire", "waiting", str(crew)]
    ]  # fmt: skip
    assert [gate["name"] for gate in shell.json("gate", yard.open, "launch", "--url", yard.url)] == ["launch"]
    only = Graph("only")
    only.add(yard.cut, 1)
    nothing = shell("gate", yard.app.submit(only).id, "--url", yard.url)
    assert (nothing.exit_code, nothing.stdout, nothing.stderr) == (0, "", "no gates\n")


def test_open_gates_of_all_runs_are_listed_with_what_they_decide_and_since_when(shell, yard, monkeypatch):
    monkeypatch.setenv("HOLDFAST_SECRET", "s" * 40)
    monkeypatch.setenv("HOLDFAST_PUBLIC_URL", "https://ops.example.org")
    graph = Graph("release", tenant="acme")
    graph.gate("approve", payload={"version": "2.4", "notes": "x" * 1000})
    graph.gate("sign", payload={"version": "2.4"}, timeout=3600)
    run = yard.app.submit(graph)
    shell("gate", run.id, "sign", "link", "--recipient", "ada", "--url", yard.url)
    revoked = shell.json("gate", run.id, "sign", "link", "--recipient", "bob", "--url", yard.url)["id"]
    shell("gate", run.id, "sign", "revoke", revoked, "--url", yard.url)
    told = shell("gate", "--url", yard.url)
    assert told.stderr == "show one with: holdfast gate RUN GATE\n"
    head, *lines = (re.split(r"  +", line) for line in told.stdout.splitlines())
    assert head == ["GATE", "RUN", "GRAPH", "TENANT", "OPEN SINCE", "TIMES OUT", "ASKED BY LINK", "PAYLOAD"]
    assert next(line[:3] for line in lines) == ["launch", str(yard.open), "boat"]
    assert {line[0] for line in lines} == {"launch", "hire", "approve", "sign"}
    approve, sign = (next(line for line in lines if line[0] == name) for name in ("approve", "sign"))
    assert approve[1:4] == [str(run.id), "release", "acme"]
    assert approve[-1].startswith('{"version":"2.4","notes":"xxx')
    assert sign[5:] == [sign[5], "ada", 'version="2.4"']
    assert sign[5].startswith("in 59 min")
    gates = {gate["name"]: gate for gate in shell.json("gate", "--url", yard.url)}
    (shown,) = shell.json("gate", yard.open, "launch", "--url", yard.url)
    (reason,) = [each for each in shell.json("why", yard.open, "--url", yard.url)["reasons"] if each["code"] == "gate"][
        :1
    ]
    assert gates["launch"]["since"] == shown["since"] == reason["data"]["since"]
    shell("gate", yard.open, "launch", "complete", "5", "--url", yard.url)
    assert "launch" not in shell("gate", "--url", yard.url).stdout


def test_without_open_gates_the_list_says_so(shell, empty):
    assert shell("gate", "--url", empty).stderr == "no gate is open\n"
    assert shell.json("gate", "--url", empty) == []


def test_a_gate_is_shown_with_what_is_decided_and_who_decided(shell, yard):
    told = shell("gate", yard.open, "launch", "--url", yard.url).stdout
    assert re.search(r"^after +mast, done \(cut\)\n +arguments .*8.*\n +result \{\"planks\": 8\}$", told, re.MULTILINE)
    assert fields(told)["before"] == "sail"
    assert fields(told)["complete"].endswith("launch complete OUTPUT")
    assert fields(told)["OUTPUT"] == "integer"
    shell("gate", yard.open, "launch", "complete", "5", "--by", "ada", "--url", yard.url)
    told = fields(shell("gate", yard.open, "launch", "--url", yard.url).stdout)
    assert (told["output"], told["decided"].partition(" by ada ")[0]) == ("5", "decided")
    for words in (["gate", yard.open], ["show", yard.open]):
        assert "decided by ada" in shell(*words, "--url", yard.url).stdout
    (gate,) = shell.json("gate", yard.open, "launch", "--url", yard.url)
    assert (gate["decided_by"], gate["output"], [node["result"] for node in gate["depends_on"]]) == (
        "ada", 5, [{"planks": 8}]
    )  # fmt: skip


@dataclass
class Decision:
    target: Literal["prod", "test"]
    day: date
    limit: int = 1000
    note: str | None = None


def test_the_fields_of_a_gates_output_are_shown(shell, yard):
    graph = Graph("release")
    graph.gate("typed", type=Decision)
    graph.gate("plain")
    run = yard.app.submit(graph).id
    lines = shell("gate", run, "typed", "--url", yard.url).stdout.splitlines()
    assert [line.strip() for line in lines[-5:]] == [
        "OUTPUT    a JSON object",
        '"target": "prod" or "test"',
        '"day": string (date)',
        '"limit": integer, default 1000',
        '"note": string or null, optional',
    ]
    assert "OUTPUT" not in shell("gate", run, "plain", "--url", yard.url).stdout
    reasons = shell("why", run, "--url", yard.url).stdout.splitlines()
    assert [line for line in reasons if "holdfast" in line] == [
        f"    holdfast gate {run} typed complete OUTPUT", f"    holdfast gate {run} plain complete",
    ]  # fmt: skip
    assert sum("  waiting for approval of gate " in line and " (since " in line for line in reasons) == 2
    node = yard.app.get_run(run).nodes()["typed"].id
    last = shell("why", node, "--url", yard.url).stdout.splitlines()[-1]
    assert last == f"    holdfast gate {run} typed complete OUTPUT"


def test_in_empty_tables_there_is_no_gate(shell, empty):
    result = shell("gate", "ffff", "--url", empty)
    assert result.exit_code == 2
    assert "no run id starts with ffff" in result.stderr


@pytest.mark.parametrize(
    ("line", "completed"),
    [(["gate", "{open}", "l"], ["launch"]), (["gate", "{open}", "launch", "c"], ["complete"]),
     (["show", "{open}", "m"], ["mast"]), (["gate", "{job}", ""], [])],
)  # fmt: skip
def test_nodes_gates_and_outcomes_are_completed(shell, yard, monkeypatch, line, completed):
    from click.shell_completion import ShellComplete

    from holdfast.cli.commands import holdfast

    monkeypatch.setenv("HOLDFAST_URL", yard.url)
    *before, typed = [word.format(open=yard.open, job=yard.job) for word in line]
    found = ShellComplete(holdfast, {}, "holdfast", "_HOLDFAST_COMPLETE").get_completions(before, typed)
    assert [item.value for item in found] == completed


# Other commands


def test_runs_and_queues_are_not_confused_by_graphs(shell, yard):
    lines = shell("runs", "--task", "boat", "--url", yard.url).stdout.splitlines()
    assert [line.split()[1:4] for line in lines[1:]] == [["failed", "boat", "-"], ["waiting", "boat", "-"]]
    queues = shell("queues", "--url", yard.url).stdout.splitlines()
    assert [line.split()[0] for line in queues] == ["QUEUE", "default"]
    paused = shell("pause", "$graph", "--url", yard.url)
    assert paused.exit_code == 2
    assert "reserved for Holdfast" in paused.stderr


def test_retry_and_cancel_of_graphs_tell_what_happens(shell, yard):
    yard.mended = True
    retried = shell("retry", yard.failed, "--url", yard.url)
    assert retried.stdout == f"{yard.failed}  retried with all nodes that depend on what failed\n"
    yard.work()
    assert yard.states(yard.failed)["hull"] == "done"
    cancelled = shell("cancel", yard.failed, "--url", yard.url)
    assert cancelled.stdout == f"{yard.failed}  cancelled\n"
    assert yard.states(yard.failed)["launch"] == "cancelled"
    sail = yard.app.get_run(yard.failed).nodes()["sail"].id
    refused = shell("retry", sail, "--url", yard.url)
    assert refused.exit_code == 1
    assert f"is node sail of graph run {yard.failed}: retry the graph" in refused.stderr
    assert "is unfinished" in shell("fork", yard.open, "--url", yard.url).stderr
    fork = shell("fork", yard.failed, "--from-failed", "--url", yard.url).stdout.strip()
    yard.work()
    assert yard.states(fork)["hull"] == "done"
    assert f"from run {yard.failed} at its failed nodes" in shell("show", fork, "--url", yard.url).stdout
    assert "receives no messages" in shell("send", yard.open, "x", "--url", yard.url).stderr
