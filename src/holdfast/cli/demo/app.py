"""The demo's app: a task that writes an invoice to a file, and a ledger of its work.

The ledger proves the result independently of the database: one line when an invoice starts, one when it is done.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from holdfast.app import Holdfast

app = Holdfast(schema=os.environ.get("HOLDFAST_DEMO_SCHEMA", "holdfast"))  # the URL comes from $HOLDFAST_URL


@app.task(name="demo.invoice")
def invoice(number: int) -> str:
    """Write one invoice. Takes 20 to 100 ms, like a call to a printer or mail server."""
    folder = Path(os.environ["HOLDFAST_DEMO_FOLDER"])
    note(folder, "begun", number)
    time.sleep(0.02 + number * 37 % 81 / 1000)
    name = f"invoice-{number:04}.txt"
    (folder / "invoices" / name).write_text(f"Invoice {number}\nTo pay: {number * 1999 % 90_000 / 100:.2f}\n")
    note(folder, "done", number)
    return name


def note(folder: Path, what: str, number: int) -> None:
    """Append a line to the ledger with one write, which is atomic between processes."""
    file = os.open(folder / "ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, f"{what} {number} {os.getpid()}\n".encode())
    finally:
        os.close(file)
