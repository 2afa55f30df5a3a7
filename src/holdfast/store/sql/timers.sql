-- name: promote_due_runs
-- Make scheduled runs ready that are due, in small batches. They queue by the time at which they were due.
with due as materialized (
    select id from {schema}runs where state = 'scheduled' and due_at <= {now}
    order by due_at limit 500 {lock_skip_locked}
)
update {schema}runs set state = 'ready', due_at = null, ready_at = due_at, turn = {next_turn({schema}runs, due_at)} where id {among(due, id)}
returning id, {notify_workers}

-- name: read_due_times
-- Read when the next run, wait, deadline, limit, start and budget is due, whether held or queued runs, waiters of events, paused
-- runs in the ready index or pauses of tenants are left, and the time. No locks. The difference is computed in Python,
-- where a corrupt time can't overflow.
select (select min(due_at) from {schema}runs where state = 'scheduled'),
    (select min(due_at) from {schema}waits where outcome is null and due_at is not null),
    (select min(deadline) from {schema}runs where deadline is not null and finished_at is null),
    (select 1 from {schema}runs where held = 'quiescing' and session is null limit 1),
    (select 1 from {schema}runs where held = 'queued' limit 1),
    (select 1 from {schema}events where more = 1 limit 1),
    (select min(look_at) from {schema}limits where look_at is not null),
    (select min(start_by) from {schema}runs where start_by is not null and started_at is null and finished_at is null),
    (select 1 from {schema}runs where paused_at is not null and paused_at > 0 and state = 'ready' and held is null limit 1),
    (select 1 from {schema}pauses where kind = 'tenant' limit 1),
    (select min(check_at) from {schema}budgets where check_at is not null), {now}

-- name: pick_overdue_runs
-- Pick unfinished runs past their deadline, and their parents, in small batches.
select id, parent from {schema}runs where deadline is not null and finished_at is null and deadline <= {now}
order by deadline limit 500

-- name: pick_unstarted_runs
-- Pick runs that should have started by now, and their parents, in small batches.
select id, parent from {schema}runs
where start_by is not null and started_at is null and finished_at is null and start_by <= {now}
order by start_by limit 500

-- name: find_unstarted
-- Find those of these locked runs that have not started.
select id from {schema}runs where id {among(:rows, id uuid)} and started_at is null

-- name: release_held_runs
-- Release runs that were held for code of a predecessor of the same unique name that has stopped.
with free as materialized (
    select r.id from {schema}runs r
    where r.held = 'quiescing' and r.session is null and (
        select 1 from {schema}runs old
        where old.unique_name = r.unique_name and old.finished_at is not null and old.session is not null limit 1
    ) is null
    order by r.seq limit 500 {lock_skip_locked}
)
update {schema}runs set held = null where id {among(free, id)}
returning id, {notify_workers}

-- name: start_queued_runs
-- Give runs that wait for a unique name the name, once no unfinished run has it.
--
-- They stay held until the code of their predecessor has stopped (`release_held_runs`).
with next as materialized (
    select r.id from {schema}runs r
    where r.held = 'queued' and (
        select 1 from {schema}runs holder
        where holder.unique_name = substr(r.unique_name, 1, length(r.unique_name) - 1) and holder.finished_at is null limit 1
    ) is null
    order by r.seq limit 500 {lock_skip_locked}
)
update {schema}runs set held = 'quiescing', unique_name = substr(unique_name, 1, length(unique_name) - 1) where id {among(next, id)}
returning id
