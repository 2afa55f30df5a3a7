"""The app whose tasks the demo's workers run: invoices, each written to a file, with a ledger of all that was done.

The ledger is the demo's own proof, apart from the database: a line when an invoice is begun, a line when it is done.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from holdfast.app import Holdfast

app = Holdfast(schema=os.environ.get("HOLDFAST_DEMO_SCHEMA", "holdfast"))  # $HOLDFAST_URL says where


@app.task(name="demo.invoice")
def invoice(number: int) -> str:
    """Write one invoice. Takes 20 to 100 ms, as if a printer or a mail server had to be waited for."""
    folder = Path(os.environ["HOLDFAST_DEMO_FOLDER"])
    note(folder, "begun", number)
    time.sleep(0.02 + number * 37 % 81 / 1000)
    name = f"invoice-{number:04}.txt"
    (folder / "invoices" / name).write_text(f"Invoice {number}\nTo pay: {number * 1999 % 90_000 / 100:.2f}\n")
    note(folder, "done", number)
    return name


def note(folder: Path, what: str, number: int) -> None:
    """Append a line to the ledger, in one write: any number of processes may do so."""
    file = os.open(folder / "ledger", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, f"{what} {number} {os.getpid()}\n".encode())
    finally:
        os.close(file)
