-- name: promote_due
-- Promote scheduled runs that are due to ready, in small batches. They queue by the time at which they were due.
with due as materialized (
    select id from {schema}runs where state = 'scheduled' and due_at <= {now}
    order by due_at limit 500 {lock_free}
)
update {schema}runs set state = 'ready', due_at = null, turn = {next_turn({schema}runs, due_at)} where id {among(due, id)}
returning id, {notify_workers}

-- name: due
-- How many microseconds until a scheduled run is due, until a wait is, and until a deadline passes; whether a run is held that nobody is at
-- any more, whether an emitted event may still have waiters, and until full limits are to be looked at. One look that takes no lock.
select (select min(due_at) from {schema}runs where state = 'scheduled') - {now},
    (select min(due_at) from {schema}waits where outcome is null and due_at is not null) - {now},
    (select min(deadline) from {schema}runs where deadline is not null and finished_at is null) - {now},
    (select 1 from {schema}runs where held = 'quiescing' and session is null limit 1),
    (select 1 from {schema}events where more = 1 limit 1),
    (select min(look_at) from {schema}limits where look_at is not null) - {now}

-- name: pick_overdue
-- Unfinished runs past their deadline, and their parents, in small batches.
select id, parent from {schema}runs where deadline is not null and finished_at is null and deadline <= {now}
order by deadline limit 500

-- name: pick_expired
-- The first finished runs whose time to be kept is over, whether they have a family, and whether anyone is still at work on them or in it.
-- (Subqueries with a limit stay what they are; exists may become a walk over all children. A condition on the session beside the order
-- makes the planner believe that there are few, and sort them all.)
with old as materialized (
    select r.id, r.session from {schema}runs r where r.expires_at is not null and r.expires_at <= {now}
    order by r.expires_at limit 500 {lock_free}
)
select old.id, (select 1 from {schema}runs d where d.root = old.id limit 1),
    case when old.session is not null then 1 else (
        select 1 from {schema}runs d where d.root = old.id and (d.finished_at is null or d.session is not null) limit 1
    ) end
from old

-- name: prune_runs
-- Locked runs that are alone.
delete from {schema}runs where id {among(:rows, id uuid)}
returning id

-- name: prune_descendants
-- The families of these runs, in small batches; but for those in which someone has gone back to work just now.
with old as materialized (
    select d.id from {schema}runs d where d.root {among(:rows, id uuid)} limit 500
)
delete from {schema}runs where id {among(old, id)} and finished_at is not null and session is null
returning id

-- name: postpone_pruning
-- Runs that someone is at, or in whose families, are looked at again in an hour, so that nobody walks past them each time.
update {schema}runs set expires_at = {now} + 3600000000 where id {among(:rows, id uuid)}

-- name: prune_history
-- The history of pruned runs.
delete from {schema}history where run {among(:rows, id uuid)}

-- name: prune_messages
-- What was sent to pruned runs.
delete from {schema}messages where run {among(:rows, id uuid)}

-- name: prune_chunks
-- What pruned runs wrote for their followers.
delete from {schema}chunks where run {among(:rows, id uuid)}
