"""RunInfo, pages and history kinds."""

import dataclasses
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from holdfast.model.history import KINDS, Entry
from holdfast.model.run import FINAL_STATES, RUN_STATES, Page, RunInfo

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def info(state: Any) -> RunInfo[int]:
    return RunInfo(
        id=UUID(int=1), task="t", queue="default", priority=0, state=state, attempt=1, crashes=0, created_at=NOW
    )


def test_there_are_four_final_states():
    assert sorted(FINAL_STATES) == ["cancelled", "done", "failed", "skipped"]
    assert [state for state in RUN_STATES if info(state).final] == ["done", "failed", "cancelled", "skipped"]


def test_run_info_is_immutable():
    ready = info("ready")
    with pytest.raises(dataclasses.FrozenInstanceError):
        ready.state = "done"
    assert ready.state == "ready"


def test_a_page_is_a_list_with_a_cursor():
    page = Page([info("ready"), info("done")], after="x")
    assert [run.state for run in page] == ["ready", "done"]
    assert page.after == "x"
    assert Page().after is None


def test_every_history_kind_has_a_description():
    assert all(kind.isidentifier() and meaning for kind, meaning in KINDS.items())
    assert Entry("done", NOW, 1).data == {}
