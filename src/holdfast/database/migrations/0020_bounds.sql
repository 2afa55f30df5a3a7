-- Bound numbers and times, so that no row holds a value that overflows in a worker's statement: one such row in a batch would keep the
-- others from being claimed. Values out of bounds, which no release writes, are replaced first; rows that are locked now are skipped.
-- On PostgreSQL constraints then refuse such values. They aren't validated, so that rows that remain don't block the migration. SQLite
-- can't add constraints to a table. Times are at most 4 * 10^17 microseconds, about 12,700 years, from 1970.

update {schema}runs set
    turn = case when turn between -4611686018427387904 and 4611686018427387904 then turn else 0 end,
    fence = case when fence between 0 and 4611686018427387904 then fence else 1099511627776 end,
    attempt = case when attempt between 0 and 2000000000 then attempt else 0 end,
    failures = case when failures between 0 and 2000000000 then failures else 0 end,
    crashes = case when crashes between 0 and 2000000000 then crashes else 0 end,
    deaths = case when deaths between 0 and 2000000000 then deaths else 0 end,
    generation = case when generation between 0 and 2000000000 then generation else 0 end,
    records = case when records between 0 and 2000000000 then records
        else (select coalesce(max(h.n), 0) from {schema}history h where h.run = {schema}runs.id) end,
    keep = case when keep between 0 and 400000000000000000 then keep else 2592000000000 end,
    keep_failed = case when keep_failed between 0 and 400000000000000000 then keep_failed end,
    spent = case when spent between 0 and 400000000000000000 then spent else 0 end,
    lifetime = case when lifetime between -400000000000000000 and 400000000000000000 then lifetime end,
    created_at = case when created_at between -400000000000000000 and 400000000000000000 then created_at else 0 end,
    ready_at = case when ready_at between -400000000000000000 and 400000000000000000 then ready_at end,
    claimed_at = case when claimed_at between -400000000000000000 and 400000000000000000 then claimed_at end,
    started_at = case when started_at between -400000000000000000 and 400000000000000000 then started_at end,
    due_at = case when due_at between -400000000000000000 and 400000000000000000 then due_at when state = 'scheduled' then 0 end,
    deadline = case when deadline between -400000000000000000 and 400000000000000000 then deadline end
where id in (
    select r.id from {schema}runs r where r.turn not between -4611686018427387904 and 4611686018427387904
        or r.fence not between 0 and 4611686018427387904 or r.attempt not between 0 and 2000000000
        or r.failures not between 0 and 2000000000 or r.crashes not between 0 and 2000000000 or r.deaths not between 0 and 2000000000
        or r.generation not between 0 and 2000000000 or r.records not between 0 and 2000000000
        or r.keep not between 0 and 400000000000000000 or r.keep_failed not between 0 and 400000000000000000
        or r.spent not between 0 and 400000000000000000
        or r.lifetime not between -400000000000000000 and 400000000000000000
        or r.created_at not between -400000000000000000 and 400000000000000000
        or r.ready_at not between -400000000000000000 and 400000000000000000
        or r.claimed_at not between -400000000000000000 and 400000000000000000
        or r.started_at not between -400000000000000000 and 400000000000000000
        or r.due_at not between -400000000000000000 and 400000000000000000
        or r.deadline not between -400000000000000000 and 400000000000000000
    {lock_skip_locked}
);

update {schema}waits set due_at = 0 where due_at not between -400000000000000000 and 400000000000000000;

{check(runs, bounds, turn between -4611686018427387904 and 4611686018427387904 and fence between 0 and 4611686018427387904
    and attempt between 0 and 2000000000 and failures between 0 and 2000000000 and crashes between 0 and 2000000000
    and deaths between 0 and 2000000000 and generation between 0 and 2000000000 and records between 0 and 2000000000
    and keep between 0 and 400000000000000000 and keep_failed between 0 and 400000000000000000 and spent between 0 and 400000000000000000
    and lifetime between -400000000000000000 and 400000000000000000
    and created_at between -400000000000000000 and 400000000000000000 and claimed_at between -400000000000000000 and 400000000000000000
    and ready_at between -400000000000000000 and 400000000000000000
    and started_at between -400000000000000000 and 400000000000000000 and due_at between -400000000000000000 and 400000000000000000
    and deadline between -400000000000000000 and 400000000000000000)};
{check(waits, bounds, due_at between -400000000000000000 and 400000000000000000)};
{check(schedules, bounds, next_at between -400000000000000000 and 400000000000000000)};
{check(workers, bounds, lease_until between -400000000000000000 and 400000000000000000)};
{check(limits, bounds, used between 0 and 2000000000 and look_at between -400000000000000000 and 400000000000000000)};
