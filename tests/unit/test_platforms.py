"""What happens on platforms that differ from the one that runs the tests."""

from __future__ import annotations

import resource
import subprocess
import sys

from holdfast.engine.processes import child_main


def test_windows_is_refused_with_what_to_use_instead():
    command = [sys.executable, "-c", "import sys; sys.platform = 'win32'; import holdfast"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert answer.returncode == 1
    assert "ImportError: Holdfast runs on Linux and macOS, and not on Windows" in answer.stderr
    assert "WSL 2" in answer.stderr


def test_a_memory_limit_is_ignored_with_a_warning_on_macos(monkeypatch, caplog):
    before = resource.getrlimit(resource.RLIMIT_AS)
    monkeypatch.setattr(sys, "platform", "darwin")
    child_main._limit_memory(64 * 1024 * 1024)
    child_main._limit_memory(None)
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    assert [record.getMessage() for record in caplog.records] == [
        'memory limit ignored limit=67108864 reason="macOS can\'t limit the memory of a process"'
    ]
