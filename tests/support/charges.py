"""Record which runs were charged with a crash, with a database trigger on the table of runs.

The column `crashes` is reset when a machine moves or a run is retried, and a history entry may or may not count: the
trigger sees each charge when it is written.
"""

from __future__ import annotations

from typing import NamedTuple

import apsw
import psycopg

from holdfast import Holdfast
from tests.support.history_queries import fetch

SQLITE = """
create table charges (run text, session text, at real);
create trigger record_charge after update of crashes on holdfast_runs when new.crashes > old.crashes
begin
    insert into charges values (new.id, old.session, unixepoch('subsec'));
end;
"""
POSTGRES = """
create table charges (run text, session text, at double precision);
create function record_charge() returns trigger language plpgsql as $$
begin
    insert into public.charges values (new.id::text, old.session, extract(epoch from clock_timestamp()));
    return null;
end $$;
create trigger record_charge after update of crashes on holdfast.runs
for each row when (new.crashes > old.crashes) execute function record_charge();
"""

LOST = ("crashed", "worker_lost")
"""The kinds of history which tell that a process died or lost its lease with the run in it, charged or not."""
GIVEN_BACK = (*LOST, "handed_back")


class Charge(NamedTuple):
    """A crash that a run was charged with, the session that had the run, and when, in seconds of the epoch."""

    run: str
    session: str | None
    at: float


def record_charges(url: str) -> None:
    """Start recording, on a database that has the tables."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.execute(SQLITE)
        connection.close()
    else:
        with psycopg.connect(url) as own:
            own.execute(POSTGRES.encode())


def read_charges(app: Holdfast) -> list[Charge]:
    """Return all charges since then, in the order in which they were written."""
    return [Charge(str(run), session, float(at)) for run, session, at in fetch(app, CHARGES)]


CHARGES = "select run, session, at from charges order by at"
