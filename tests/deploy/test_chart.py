"""The rendered Helm chart contains what the manifests contain, and both follow the schemas of Kubernetes."""

from __future__ import annotations

import psycopg
import pytest

from holdfast import Holdfast
from holdfast.control.maintenance import database_roles
from tests.deploy.chart import RELEASE, render, render_text, values
from tests.deploy.test_deployment_files import documents

VARIANTS = {
    "defaults": {},
    "autoscaling": {"autoscaling": {"enabled": True}},
    "workers only": {"dashboard": {"enabled": False}, "migrate": {"enabled": False}},
    "all settings": {
        "app": "shop.durable:app", "worker": {"queues": "mail,reports"},
        "dashboard": {"proxies": ["10.0.0.0/8", "192.0.2.1"], "readReplica": True}, "schema": "jobs",
        "autoscaling": {"enabled": True},
    },
}  # fmt: skip


def named(objects, kind):
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def test_the_chart_has_the_objects_of_the_manifests():
    rendered = render(autoscaling={"enabled": True})
    assert sorted(each["kind"] for each in rendered) == sorted(each["kind"] for each in documents())
    ours = named(documents(), "Deployment")["holdfast-worker"]["spec"]["template"]["spec"]
    theirs = named(rendered, "Deployment")[f"{RELEASE}-worker"]["spec"]["template"]["spec"]
    assert set(ours) == set(theirs)
    (one,), (other,) = ours["containers"], theirs["containers"]
    for part in ("securityContext", "startupProbe", "livenessProbe", "readinessProbe", "volumeMounts"):
        assert one[part] == other[part], part


def test_replicas_are_left_to_the_autoscaler():
    assert "replicas" in named(render(), "Deployment")[f"{RELEASE}-worker"]["spec"]
    scaled = render(autoscaling={"enabled": True})
    assert "replicas" not in named(scaled, "Deployment")[f"{RELEASE}-worker"]["spec"]
    (target,) = named(scaled, "ScaledObject").values()
    assert target["spec"]["scaleTargetRef"]["name"] in named(scaled, "Deployment")


def test_values_reach_the_command_lines():
    rendered = render(**VARIANTS["all settings"])
    deployments = named(rendered, "Deployment")
    worker, board = (deployments[f"{RELEASE}-{name}"]["spec"]["template"]["spec"] for name in ("worker", "dashboard"))
    assert "--queues=mail,reports" in worker["containers"][0]["args"]
    assert {"name": "HOLDFAST_APP", "value": "shop.durable:app"} in worker["containers"][0]["env"]
    text = " ".join(board["containers"][0]["args"])
    assert "10.0.0.0/8" in text
    assert "192.0.2.1" in text
    secret = {"name": "holdfast", "key": "read-url"}
    assert {"name": "HOLDFAST_READ_URL", "valueFrom": {"secretKeyRef": secret}} in board["containers"][0]["env"]
    plain = named(render(), "Deployment")[f"{RELEASE}-dashboard"]["spec"]["template"]["spec"]["containers"][0]
    assert "HOLDFAST_READ_URL" not in [each["name"] for each in plain["env"]]
    assert set(named(render(**VARIANTS["workers only"]), "Deployment")) == {f"{RELEASE}-worker"}


def test_the_chart_s_query_for_autoscaling_works_with_the_role_read(postgres_url):
    """KEDA executes it as the user of `read-url`, and takes the first column of the only row as the metric."""
    (target,) = named(render(autoscaling={"enabled": True}), "ScaledObject").values()
    (trigger,) = target["spec"]["triggers"]
    with Holdfast(postgres_url) as app:
        app.remote("job").enqueue_many([(n,) for n in range(4)])
        app.remote("job").options(delay=60).enqueue(5)
        app.store.prepare()
    prefix = "keda_" + postgres_url.partition("holdfast_")[2][:12]
    roles = database_roles("holdfast", prefix)
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(roles.sql.encode())
        try:
            connection.execute(f"set role {roles.roles['read']}".encode())
            assert connection.execute(trigger["metadata"]["query"]).fetchall() == [(4,)]
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute("delete from holdfast.runs")
        finally:
            connection.execute("reset role")
            for role in roles.roles.values():
                connection.execute(f"reassign owned by {role} to current_user; drop owned by {role}".encode())
                connection.execute(f"drop role {role}".encode())
    assert float(trigger["metadata"]["targetQueryValue"]) == values()["worker"]["concurrency"]


def test_a_template_that_tests_cannot_render_is_an_error():
    with pytest.raises(ValueError, match="toYaml"):
        render_text("{{ toYaml .Values.image }}", values())


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.31", "1.33", "1.35", "1.37"])
def test_manifests_and_chart_follow_the_schemas_of_kubernetes(version):
    checker = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate isn't installed")
    objects = [*documents(), *(each for changes in VARIANTS.values() for each in render(**changes))]
    checked = [each for each in objects if not each["apiVersion"].startswith("keda.sh/")]
    assert len(checked) > 10
    for each in checked:
        checker.validate(each, version, strict=True)
