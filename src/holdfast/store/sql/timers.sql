-- name: promote_due
-- Scheduled runs whose time has come become ready, in small batches.
with due as materialized (
    select id from {schema}runs where state = 'scheduled' and due_at <= {now}
    order by due_at limit 500 {lock_free}
)
update {schema}runs set state = 'ready', due_at = null where id {among(due, id)}
returning id, {hint}

-- name: due
-- How many microseconds until a scheduled run is due, until a wait is, and until a deadline passes; whether a run is held that nobody is at
-- any more, and whether an emitted event may still have waiters. One look that takes no lock.
select (select min(due_at) from {schema}runs where state = 'scheduled') - {now},
    (select min(due_at) from {schema}waits where outcome is null and due_at is not null) - {now},
    (select min(deadline) from {schema}runs where deadline is not null and finished_at is null) - {now},
    (select 1 from {schema}runs where held = 'quiescing' and session is null limit 1),
    (select 1 from {schema}events where more = 1 limit 1)

-- name: pick_overdue
-- Unfinished runs past their deadline, and their parents, in small batches.
select id, parent from {schema}runs where deadline is not null and finished_at is null and deadline <= {now}
order by deadline limit 500

-- name: fail_overdue
-- Unfinished runs past their deadline fail, or are to undo first. A worker that is at one keeps its mark on it until it has let go.
update {schema}runs
set state = case when undos = 1 then 'ready' else 'failed' end,
    ending = case when undos = 1 then 'failed' end,
    cause = case when undos = 1 then :error end,
    error = :error, due_at = null, resumed = 0,
    deadline = case when undos = 0 then deadline end,
    held = case when undos = 1 and session is not null then 'quiescing' end,
    failures = case when undos = 0 then failures else 0 end,
    crashes = case when undos = 0 then crashes else 0 end,
    records = records + 1,
    finished_at = case when undos = 0 then {now} end,
    expires_at = case when undos = 0 and parent is null then {now} + keep end
where id {among(:rows, id uuid)} and finished_at is null and ending is null and deadline <= {now}
returning id, records, attempt, session, claimed_at, case when finished_at is null then 0 else 1 end, {hint}

-- name: prune_runs
-- Finished runs whose time to be kept is over, in small batches.
with old as materialized (
    select r.id from {schema}runs r where r.expires_at is not null and r.expires_at <= {now} and r.session is null
    and not exists (select 1 from {schema}runs d where d.root = r.id)
    order by r.expires_at limit 500 {lock_free}
)
delete from {schema}runs where id {among(old, id)}
returning id

-- name: prune_descendants
-- The families of finished runs whose time to be kept is over, in small batches, as far as nobody in them is at work.
with families as materialized (
    select r.id from {schema}runs r where r.expires_at is not null and r.expires_at <= {now} and r.session is null
    and exists (select 1 from {schema}runs d where d.root = r.id)
    and not exists (select 1 from {schema}runs d where d.root = r.id and (d.finished_at is null or d.session is not null))
    order by r.expires_at limit 100
),
old as materialized (
    select d.id from {schema}runs d where d.root in (select id from families) limit 500
)
delete from {schema}runs where id {among(old, id)}
returning id

-- name: prune_history
-- The history of pruned runs.
delete from {schema}history where run {among(:rows, id uuid)}

-- name: prune_checkpoints
-- What pruned runs recorded.
delete from {schema}checkpoints where run {among(:rows, id uuid)}

-- name: prune_waits
-- What pruned runs waited for.
delete from {schema}waits where run {among(:rows, id uuid)}

-- name: prune_messages
-- What was sent to pruned runs.
delete from {schema}messages where run {among(:rows, id uuid)}

-- name: prune_chunks
-- What pruned runs wrote for their followers.
delete from {schema}chunks where run {among(:rows, id uuid)}
