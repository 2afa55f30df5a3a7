"""The frameworks are optional: nothing loads them but their own integration, which says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

FRAMEWORKS = {
    "pydantic_ai": "pydantic_ai", "openai_agents": "agents", "langgraph": "langgraph", "dask": "distributed",
    "ray": "ray",
}  # fmt: skip


def run_python(code: str) -> str:
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return found.stdout + found.stderr


def test_holdfast_loads_no_framework():
    names = {"pydantic", *FRAMEWORKS.values()}
    code = f"import sys, holdfast; print(sorted({names} & sys.modules.keys()))"
    assert run_python(code) == "[]\n"


@pytest.mark.parametrize("integration", ["pydantic_ai", "openai_agents", "dask", "ray"])
def test_an_integration_names_what_is_missing(integration: str):
    framework, extra = FRAMEWORKS[integration], integration.replace("_", "-")
    code = f"import sys; sys.modules[{framework!r}] = None; import holdfast.integrations.{integration}"
    output = run_python(code)
    assert f"ImportError: holdfast.integrations.{integration} needs" in output
    assert f'pip install "holdfast[{extra}]"' in output


@pytest.mark.slow
@pytest.mark.parametrize("integration", ["pydantic_ai", "openai_agents"])
def test_an_integration_loads_only_its_own_framework(integration: str):
    others = sorted(set(FRAMEWORKS.values()) - {FRAMEWORKS[integration]})
    code = f"import sys, holdfast.integrations.{integration}; print([name for name in {others} if name in sys.modules])"
    assert run_python(code) == "[]\n"
