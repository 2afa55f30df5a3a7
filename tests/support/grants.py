"""Record every start that a limit has granted, with database triggers on the tables of runs and of permits of steps.

Permits of steps are deleted when they return, and history has an attempt only once it has ended: the triggers see each
grant in the transaction that counts it, with the database time at which it counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import apsw
import psycopg

from holdfast import Holdfast
from tests.support.history_queries import fetch

SQLITE = """
create table grants (run text, attempt int, at bigint);
create trigger record_claim after update of fence on holdfast_runs
when new.fence > old.fence and new.state = 'running' and new.limits is not null
begin
    insert into grants values (new.id, new.attempt, new.claimed_at);
end;
create trigger record_permit after insert on holdfast_step_permits
begin
    insert into grants select new.run, r.attempt, new.taken_at from holdfast_runs r where r.id = new.run;
end;
"""
POSTGRES = """
create table grants (run text, attempt int, at bigint);
create function record_claim() returns trigger language plpgsql as $$
begin
    insert into public.grants values (new.id::text, new.attempt, new.claimed_at);
    return null;
end $$;
create trigger record_claim after update of fence on holdfast.runs
for each row when (new.fence > old.fence and new.state = 'running' and new.limits is not null)
execute function record_claim();
create function record_permit() returns trigger language plpgsql as $$
begin
    insert into public.grants select new.run::text, r.attempt, new.taken_at from holdfast.runs r where r.id = new.run;
    return null;
end $$;
create trigger record_permit after insert on holdfast.step_permits
for each row execute function record_permit();
"""


class Grant(NamedTuple):
    """A start that was granted: to which attempt of which run, and when by the database clock, in microseconds."""

    run: str
    attempt: int
    at: int


def record_grants(url: str) -> None:
    """Start recording, on a database that has the tables."""
    if url.startswith("sqlite"):
        connection = apsw.Connection(url.removeprefix("sqlite:///"))
        connection.execute(SQLITE)
        connection.close()
    else:
        with psycopg.connect(url) as own:
            own.execute(POSTGRES.encode())


def read_grants(app: Holdfast) -> list[Grant]:
    """Return all grants since then, by time."""
    return [Grant(str(run), *rest) for run, *rest in fetch(app, "select run, attempt, at from grants order by at")]


def most_in_a_window(costs: Iterable[tuple[int, int]], period: int) -> int:
    """Return the highest sum of costs in any period, given each with its time, in order of the times."""
    window: deque[tuple[int, int]] = deque()
    total = most = 0
    for at, cost in costs:
        window.append((at, cost))
        total += cost
        while window[0][0] <= at - period:
            total -= window.popleft()[1]
        most = max(most, total)
    return most
