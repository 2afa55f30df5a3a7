"""Import a large CSV file into a table, with progress: each row exactly once, despite crashes.

    python file_import.py
    python file_import.py customers.csv

Without a file it creates one with 20,000 rows, some of them invalid. The file is read in parts, and the rows of a part
commit together with the checkpoint. Kill the program (`kill -9`) and start it again: it resumes with the next part. A
file is imported once; a changed file is imported again.
"""

import csv
import hashlib
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any, TypedDict

from holdfast import Holdfast, Run, SyncContext

app = Holdfast("sqlite:///import.db")
PART = 500


class Outcome(TypedDict):
    good: int
    bad: int


class Part(Outcome):
    next: int
    """The offset of the next part in the file."""


@app.task(timeout=3600)
def import_file(ctx: SyncContext, path: str, digest: str) -> Outcome:
    size = ctx.step(size_of, path)
    good = bad = at = 0
    while at < size:
        part = ctx.transaction(import_part, path, digest, at, good + bad + 1)
        good, bad, at = good + part["good"], bad + part["bad"], part["next"]
        ctx.progress(at, size, note=f"{good + bad:,} rows")
    return {"good": good, "bad": bad}


def size_of(path: str) -> int:
    return Path(path).stat().st_size


def import_part(connection: Any, path: str, digest: str, at: int, first: int) -> Part:
    """Insert valid rows into `customers` and invalid ones, with row number and reason, into `rejected`."""
    time.sleep(0.02)  # leaves time to watch the progress
    rejected: list[tuple[str, int, str]] = []
    number = first - 1
    with Path(path).open(newline="", encoding="utf-8") as file:
        lines = iter(file.readline, "")  # iterating over the file itself would disable tell()
        rows = csv.DictReader(lines, fieldnames=next(csv.reader(lines)))
        if at:
            file.seek(at)
        for number, row in enumerate(islice(rows, PART), start=first):
            if wrong := flaw_of(row):
                rejected.append((digest, number, wrong))
            else:
                values = (int(row["id"]), row["name"], row["email"])
                connection.execute("insert or replace into customers values (?, ?, ?)", values)
        for rejection in rejected:
            connection.execute("insert into rejected values (?, ?, ?)", rejection)
        return {"good": number - first + 1 - len(rejected), "bad": len(rejected), "next": file.tell()}


def flaw_of(row: dict[str, str | None]) -> str | None:
    if not (row.get("id") or "").isdigit():
        return "the id is not a number"
    if "@" not in (row.get("email") or ""):
        return "the email has no @"
    return None if row.get("name") else "the name is missing"


def create_tables() -> None:
    with app.transaction() as connection:
        connection.execute("create table if not exists customers (id integer primary key, name text, email text)")
        connection.execute("create table if not exists rejected (file text, number integer, wrong text)")


def create_file(path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "name", "email"])
        for number in range(1, 20_001):
            at = "" if number % 1000 == 7 else "@"
            writer.writerow([number, f"Customer {number}", f"customer{number}{at}example.org"])


def watch(run: Run[Outcome]) -> None:
    """Print the progress until the run ends. Any process can do this with the run's id."""
    while run.info().finished_at is None:
        if (seen := run.info().progress) and seen.total:
            show_progress(f"{seen.done / seen.total:.0%}, {seen.note}")
        time.sleep(0.1)


def show_progress(text: str) -> None:
    sys.stdout.write(f"\r\033[K{text}" if sys.stdout.isatty() else f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "customers.csv")
    if not path.exists():
        if len(sys.argv) > 1:
            sys.exit(f"{path} does not exist")
        create_file(path)
    create_tables()
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    run = import_file.options(key=digest).enqueue(str(path.resolve()), digest)
    with app.worker(lease=5, grace=1):
        watch(run)
        outcome = run.result()
    print(f"\n{path}: {outcome['good']:,} good, {outcome['bad']:,} bad, see the table rejected")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nstopped; run the same command to continue")
