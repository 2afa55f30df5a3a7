"""The notebook of the guide, executed by a real kernel."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient

PAGE = Path(__file__).parent.parent.parent / "docs" / "integrations" / "notebooks.md"
CELL = re.compile(
    r"^```python notest cell\n(?P<code>.*?)^```\n(?:\n```text\n(?P<said>.*?)^```\n)?", re.MULTILINE | re.DOTALL
)
MORE = """
from holdfast import Done, State


class Trial(State):
    async def run(self, ctx: Context) -> Done[None]: ...

app.machine("subscription", Trial)
app.schedule("nightly", greet, args=("Ada",), every=60)
app.limit("calls", concurrency={number})

@app.on_start
def connect(): ...

{unknown}
"""
BLOCKING = """
for verb in (lambda: greet.enqueue("Ada"), lambda: app.worker().drain(), lambda: run.result()):
    try:
        verb()
    except Exception as error:
        print(type(error).__name__, error)
"""


def executed(folder: Path, cells: list[str]) -> list[str]:
    """What each cell has written."""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])
    NotebookClient(book, timeout=60, kernel_name="python3", resources={"metadata": {"path": str(folder)}}).execute()
    return ["".join(each.get("text", "") for each in cell.outputs) for cell in book.cells]


def test_the_guides_notebook_says_what_the_page_shows(tmp_path):
    found = list(CELL.finditer(PAGE.read_text()))
    more = [MORE.format(number=number, unknown=f"# edit {number}") for number in (1, 2)]
    cells = [*(match["code"] for match in found), *more, "print(len(app._hooks.on_start))", BLOCKING]
    said = executed(tmp_path, cells)
    assert said[: len(found)] == [match["said"] or "" for match in found]
    assert len(found) > 5
    assert said[len(found)] == ""
    assert "task subscription is redefined" in said[len(found) + 1]
    assert said[-2] == "1\n"
    enqueue, drain, result = said[-1].splitlines()
    assert "BlockingCall enqueue() would block the running event loop; use `await …aenqueue(…)`" in enqueue
    assert "BlockingCall drain() would block the running event loop; use `await worker.adrain()`" in drain
    assert enqueue.endswith("cells of a notebook run in an event loop, and may use await")
    assert result.startswith("BlockingCall result()")
