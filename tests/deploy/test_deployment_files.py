"""The deployment files call commands that exist, agree with each other, and query what exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import psycopg
import pytest
import yaml

from holdfast import Holdfast
from holdfast.cli.commands import holdfast
from holdfast.database.roles import ROLES

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
KUBERNETES = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
CHART = DEPLOY / "helm" / "holdfast"
STOP_MARGIN_S = 10


def documents():
    return [document for path in KUBERNETES for document in yaml.safe_load_all(path.read_text())]


def containers():
    pods = [each["spec"]["template"]["spec"] for each in documents() if each["kind"] in ("Deployment", "Job")]
    return [(pod, container) for pod in pods for container in pod["containers"]]


def compose():
    return yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())["services"]


def units():
    return {path.name: path.read_text() for path in (DEPLOY / "systemd").glob("*.service")}


def commands():
    """All command lines of the files, with their arguments."""
    lines = [(container["name"], container["args"]) for _, container in containers()]
    lines += [(name, service["command"]) for name, service in compose().items() if "command" in service]
    exec_start = re.compile(r"^ExecStart=(.*)$", re.MULTILINE)
    starts = [(name, start) for name, text in units().items() for start in exec_start.findall(text)]
    lines += [(name, shlex.split(start.replace("${HEALTH_PORT}", "8080"))[1:]) for name, start in starts]
    lines.append(("image", yaml.safe_load(re.search(r"^CMD (.*)$", dockerfile(), re.MULTILINE)[1])))
    checks = [service["healthcheck"]["test"][2:] for service in compose().values() if "build" in service
              and "healthcheck" in service]  # fmt: skip
    return lines + [("health check", check) for check in checks]


def dockerfile():
    return (DEPLOY / "docker" / "Dockerfile").read_text()


@pytest.mark.parametrize(("where", "words"), commands())
def test_a_command_line_parses(where, words):
    name, *arguments = words
    command = holdfast.commands[name]
    context = command.make_context(name, arguments)
    assert not context.args, where


def test_a_worker_gets_more_time_to_stop_than_its_grace():
    def grace(words):
        return int(words[words.index("--grace") + 1])

    (pod, worker), *_ = [(pod, each) for pod, each in containers() if each["name"] == "worker"]
    assert pod["terminationGracePeriodSeconds"] >= grace(worker["args"]) + STOP_MARGIN_S
    service = compose()["worker"]
    assert int(service["stop_grace_period"].removesuffix("s")) >= grace(service["command"]) + STOP_MARGIN_S
    for name in ("holdfast-worker.service", "holdfast-worker@.service"):
        start = shlex.split(re.search(r"^ExecStart=(.*)$", units()[name], re.MULTILINE)[1])
        assert int(re.search(r"^TimeoutStopSec=(\d+)$", units()[name], re.MULTILINE)[1]) >= grace(start) + STOP_MARGIN_S
    values = yaml.safe_load((CHART / "values.yaml").read_text())["worker"]
    assert values["terminationGracePeriodSeconds"] >= values["grace"] + STOP_MARGIN_S


def test_probes_ask_the_port_that_the_process_serves():
    for _, container in containers():
        ports = {port["name"]: str(port["containerPort"]) for port in container.get("ports", ())}
        for name, path in (("startup", "/livez"), ("liveness", "/livez"), ("readiness", "/readyz")):
            if container["name"] == "migrate":
                continue
            get = container[f"{name}Probe"]["httpGet"]
            assert get["path"] == path
            assert any(ports[get["port"]] in argument for argument in container["args"])


def test_containers_run_without_privileges_on_a_read_only_file_system():
    for pod, container in containers():
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["automountServiceAccountToken"] is False
        context = container["securityContext"]
        assert (context["readOnlyRootFilesystem"], context["allowPrivilegeEscalation"]) == (True, False)
        assert context["capabilities"] == {"drop": ["ALL"]}
    for name, service in compose().items():
        if name != "database":
            assert service["read_only"]
            assert service["cap_drop"] == ["ALL"]
    assert re.search(r"^USER 65532:65532$", dockerfile(), re.MULTILINE)
    assert all("NoNewPrivileges=yes" in text and "ProtectSystem=strict" in text for text in units().values())


def test_the_secret_has_a_url_for_each_role():
    keys = {
        each["valueFrom"]["secretKeyRef"]["key"] for _, container in containers() for each in container["env"]
    } | {"read-url"}  # fmt: skip
    assert {key.removesuffix("-url") for key in keys - {"token"}} <= set(ROLES)


def test_the_query_for_autoscaling_counts_ready_and_running_runs(postgres_url):
    (query,) = [
        trigger["metadata"]["query"]
        for each in documents() if each["kind"] == "ScaledObject" for trigger in each["spec"]["triggers"]
    ]  # fmt: skip
    with Holdfast(postgres_url) as app:
        app.remote("job").enqueue_many([(n,) for n in range(3)])
        app.remote("job").options(delay=60).enqueue(4)
        app.store.prepare()
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute(query).fetchone() == (3,)
    chart = (CHART / "templates" / "keda.yaml").read_text()
    assert query.split("holdfast.runs")[1].strip() in " ".join(chart.split())


def test_the_chart_uses_only_values_that_it_declares():
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def known(path):
        found = values
        for part in path.split("."):
            if not isinstance(found, dict) or part not in found:
                return False
            found = found[part]
        return True

    used = {name for path in (CHART / "templates").iterdir() for name in
            re.findall(r"\.Values\.([\w.]+)", path.read_text())}  # fmt: skip
    assert {name for name in used if not known(name)} == set()
    for path in KUBERNETES:
        assert (CHART / "templates" / path.name).exists(), "the chart has all that the manifests have"
