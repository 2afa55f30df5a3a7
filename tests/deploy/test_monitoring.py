"""The alert rules and the Grafana dashboard use metrics and labels that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from holdfast import Holdfast
from holdfast.control import Control
from holdfast.telemetry.metrics import METRICS
from holdfast.web.api.metrics import exposition

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy" / "prometheus" / "holdfast.rules.yml"
BOARD = ROOT / "deploy" / "grafana" / "holdfast.json"
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
SELECTOR = re.compile(r"(holdfast_\w+)(?:\{([^}]*)\})?")


@pytest.fixture(scope="module")
def series() -> dict[str, set[str]]:
    """All series that a worker and a dashboard serve, with their labels."""
    known = {
        f"{metric.prometheus}{suffix}": {*metric.labels, *(["le"] if suffix == "_bucket" else [])}
        for metric in METRICS.values()
        for suffix in SUFFIXES[metric.kind]
    }
    with Holdfast("sqlite:///:memory:") as app:
        app.limit("shop", concurrency=1)
        app.store.prepare()
        served = exposition(Control(app.store))
    for name in re.findall(r"^# TYPE (\w+) gauge$", served, re.MULTILINE):
        known.setdefault(name, set())
    known["holdfast_runs"] |= {"queue", "state"}
    known["holdfast_workers"] |= {"state"}
    known["holdfast_queue_paused"] |= {"queue"}
    known["holdfast_parked"] |= {"limit"}
    return known


def rules():
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    return group["rules"]


def expressions():
    panels = json.loads(BOARD.read_text())["panels"]
    shown = [(panel["title"], each["expr"]) for panel in panels for each in panel.get("targets", ())]
    return [(rule["alert"], rule["expr"]) for rule in rules()] + shown


@pytest.mark.parametrize(("name", "expr"), expressions())
def test_an_expression_uses_existing_metrics_and_labels(series, name, expr):
    used = SELECTOR.findall(expr)
    assert used or "up{" in expr, name
    labels = {"job", "instance", "le"}
    for metric, selected in used:
        assert metric in series, f"{name}: {metric} doesn't exist"
        assert set(re.findall(r"(\w+)=", selected)) <= series[metric], name
        labels |= series[metric]
    grouped = {label.strip() for text in re.findall(r"by \(([^)]*)\)", expr) for label in text.split(",")}
    assert grouped <= labels, name
    assert expr.count("(") == expr.count(")")


def test_what_users_alert_on_has_a_rule_and_a_panel():
    rule_text = " ".join(rule["expr"] for rule in rules())
    board = BOARD.read_text()
    for metric in ("queue_oldest_ready_seconds", "loop_lag_seconds", "lease_missed_total", "threads_lost",
                   "claim_duration_seconds_bucket", "commit_duration_seconds_bucket"):  # fmt: skip
        assert f"holdfast_{metric}" in rule_text
        assert f"holdfast_{metric}" in board
    assert "holdfast_claim_size_sum" in board
    assert "holdfast_commit_size_sum" in board


def test_outcomes_and_states_in_rules_exist():
    known = (ROOT / "docs" / "telemetry.md").read_text() + (ROOT / "src/holdfast/web/api/metrics.py").read_text()
    labels = [found for rule in rules() for found in re.findall(r'(?:outcome|state)=~?"([^"]*)"', rule["expr"])]
    assert labels
    assert {value for label in labels for value in label.split("|") if value not in known} == set()


def test_every_alert_is_explained_in_the_docs():
    page = (ROOT / "docs" / "alerting.md").read_text()
    table = "".join(line for line in page.splitlines() if line.startswith("| `Holdfast"))
    assert {rule["alert"] for rule in rules()} == set(re.findall(r"`(Holdfast\w+)`", table))
