-- name: promote_due
-- Scheduled runs whose time has come become ready, in small batches.
with due as materialized (
    select id from {schema}runs where state = 'scheduled' and due_at <= {now}
    order by due_at limit 500 {lock_free}
)
update {schema}runs set state = 'ready', due_at = null where id {among(due, id)}
returning id, {hint}

-- name: next_due
-- How many microseconds until a scheduled run is due, and until a deadline passes.
select (select min(due_at) from {schema}runs where state = 'scheduled') - {now},
    (select min(deadline) from {schema}runs where deadline is not null and finished_at is null) - {now}

-- name: pick_overdue
-- Unfinished runs past their deadline, in small batches.
select id, state from {schema}runs where deadline is not null and finished_at is null and deadline <= {now}
order by deadline limit 500 {lock_free}

-- name: fail_overdue
-- Unfinished runs past their deadline fail. A worker that is at one keeps its mark on it until it has let go.
update {schema}runs
set state = 'failed', error = :error, due_at = null, held = null, records = records + 1, finished_at = {now}, expires_at = {now} + keep
where id {among(:rows, id uuid)} and finished_at is null
returning id, records, attempt, session, claimed_at

-- name: prune_runs
-- Finished runs whose time to be kept is over, in small batches.
with old as materialized (
    select id from {schema}runs where expires_at is not null and expires_at <= {now} and session is null
    order by expires_at limit 500 {lock_free}
)
delete from {schema}runs where id {among(old, id)}
returning id

-- name: prune_history
-- The history of pruned runs.
delete from {schema}history where run {among(:rows, id uuid)}
