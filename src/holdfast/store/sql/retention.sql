-- name: pick_expired
-- Pick the first expired runs, whether each has a tree, and whether anything in it is unfinished or still running.
--
-- Subqueries with a limit stay as they are; exists may become a scan of all children. A condition on the session beside
-- the order would make the planner expect few rows and sort them all.
with old as materialized (
    select r.id, r.session from {schema}runs r where r.expires_at is not null and r.expires_at <= {now}
    order by r.expires_at limit {limit} {lock_skip_locked}
)
select old.id, (select 1 from {schema}runs d where d.root = old.id limit 1),
    case when old.session is not null then 1 else (
        select 1 from {schema}runs d where d.root = old.id and (d.finished_at is null or d.session is not null) limit 1
    ) end
from old

-- name: delete_runs
-- Delete locked runs that have no tree.
delete from {schema}runs where id {among(:rows, id uuid)}
returning id

-- name: delete_descendants
-- Delete a batch of runs below these, except those that were retried meanwhile.
with old as materialized (
    select d.id from {schema}runs d where d.root {among(:rows, id uuid)} limit {limit}
)
delete from {schema}runs where id {among(old, id)} and finished_at is not null and session is null
returning id

-- name: postpone_pruning
-- Check runs whose tree is busy again in an hour, so that not every pass reads them.
update {schema}runs set expires_at = {now} + 3600000000 where id {among(:rows, id uuid)}

-- name: find_details
-- Find out which tables may have rows of a batch of pruned runs: those with a row of any run between its first and its last id.
--
-- Most runs have rows in few tables, and those of a batch were created one after the other. Where none of them has a row,
-- one descent into an index replaces a delete with one for each run.
select
    (select 1 from {schema}checkpoints x where x.run >= cast(:first as {uuid}) and x.run <= cast(:last as {uuid}) limit 1),
    (select 1 from {schema}waits x where x.run >= cast(:first as {uuid}) and x.run <= cast(:last as {uuid}) limit 1),
    (select 1 from {schema}messages x where x.run >= cast(:first as {uuid}) and x.run <= cast(:last as {uuid}) limit 1),
    (select 1 from {schema}chunks x where x.run >= cast(:first as {uuid}) and x.run <= cast(:last as {uuid}) limit 1),
    (select 1 from {schema}edges x where x.needs >= cast(:first as {uuid}) and x.needs <= cast(:last as {uuid}) limit 1),
    (select 1 from {schema}metadata x where x.run >= cast(:first as {uuid}) and x.run <= cast(:last as {uuid}) limit 1),
    (select 1 from {schema}logs x where x.run >= cast(:first as {uuid}) and x.run <= cast(:last as {uuid}) limit 1),
    (select 1 from {schema}run_values x where x.run >= cast(:first as {uuid}) and x.run <= cast(:last as {uuid}) limit 1),
    (select 1 from {schema}budget_totals x where x.run >= cast(:first as {uuid}) and x.run <= cast(:last as {uuid}) limit 1),
    (select 1 from {schema}listeners x where x.run >= cast(:first as {uuid}) and x.run <= cast(:last as {uuid}) limit 1),
    (select 1 from {schema}langgraph_checkpoints x where x.thread >= cast(:first as text) and x.thread <= cast(:last as text) limit 1),
    (select 1 from {schema}langgraph_values x where x.thread >= cast(:first as text) and x.thread <= cast(:last as text) limit 1),
    (select 1 from {schema}langgraph_writes x where x.thread >= cast(:first as text) and x.thread <= cast(:last as text) limit 1)

-- name: delete_history
-- Delete the history of pruned runs.
delete from {schema}history where run {among(:rows, id uuid)}

-- name: delete_messages
-- Delete the messages of pruned runs.
delete from {schema}messages where run {among(:rows, id uuid)}

-- name: delete_chunks
-- Delete the chunks of pruned runs.
delete from {schema}chunks where run {among(:rows, id uuid)}

-- name: delete_metadata
-- Delete the metadata of pruned runs.
delete from {schema}metadata where run {among(:rows, id uuid)}

-- name: delete_edges
-- Delete the edges of pruned nodes.
delete from {schema}edges where needs {among(:rows, id uuid)}

-- name: pick_old_events
-- Pick events that nobody touched for a time, in small batches.
select target from {schema}events where touched_at <= {now} - cast(:age as bigint)
order by touched_at limit 500 {lock_skip_locked}

-- name: delete_unawaited_events
-- Delete those of these events that nobody awaits. A subquery with a limit stays as it is; not exists may scan all
-- waits.
delete from {schema}events where target {among(:rows, target text)}
and (select 1 from {schema}waits w where w.target = {schema}events.target and w.kind = 'event' and w.outcome is null limit 1) is null
returning emitted_at

-- name: record_pruned_events
-- Record when the last of the deleted events was emitted: a row beside the statistics, whose span is -1.
--
-- Nothing is locked after it in the same transaction.
insert into {schema}tallies (span, at, lane, state, runs, waits, takes)
values (-1, 0, 0, 'events_pruned', cast(:until as bigint), '', '')
on conflict (span, at, lane, state) do update set runs = excluded.runs where {schema}tallies.runs < excluded.runs

-- name: read_pruned_events
-- Read when the last of the deleted events was emitted.
select runs from {schema}tallies where span = -1 and at = 0 and lane = 0 and state = 'events_pruned'

-- name: postpone_event_pruning
-- Check events that are still awaited again after as long a time.
update {schema}events set touched_at = {now} where target {among(:rows, target text)}

-- name: postpone_key_pruning
-- Check those of the oldest idempotency keys again after as long a time whose run is unfinished.
with old as materialized (
    select k.scope, k.key from {schema}keys k where k.created_at <= {now} - cast(:age as bigint)
    order by k.created_at limit 500 {lock_skip_locked}
)
update {schema}keys set created_at = {stamp} where (scope, key) in (select old.scope, old.key from old)
and (select 1 from {schema}runs r where r.id = {schema}keys.run and r.finished_at is null) is not null
returning scope

-- name: prune_keys
-- Delete the oldest idempotency keys, in small batches, except those whose run is unfinished.
with old as materialized (
    select k.scope, k.key from {schema}keys k where k.created_at <= {now} - cast(:age as bigint)
    order by k.created_at limit 500 {lock_skip_locked}
)
delete from {schema}keys where (scope, key) in (select old.scope, old.key from old)
and (select 1 from {schema}runs r where r.id = {schema}keys.run and r.finished_at is null) is null
returning scope

-- name: prune_expired_keys
-- Delete idempotency keys that have expired, in small batches.
with old as materialized (
    select k.scope, k.key from {schema}keys k where k.expires_at is not null and k.expires_at <= {now}
    order by k.expires_at limit 500 {lock_skip_locked}
)
delete from {schema}keys where (scope, key) in (select old.scope, old.key from old) and expires_at <= {now}
returning scope

-- name: prune_counters
-- Delete counters that are unused and whose log has expired, in small batches; skip locked ones.
with unused as materialized (
    select l.place from {schema}limits l
    where l.used = 0 and l.look_at is null
    and l.touched_at < {now} - 3600000000 - coalesce((select s.period from {schema}limit_settings s where s.name = l.name), 0)
    limit 500 {lock_skip_locked}
)
delete from {schema}limits where place {among(unused, place)}
returning place

-- name: count_expired
-- Count finished runs that have expired.
select count(*) from {schema}runs where expires_at is not null and expires_at <= {now} and session is null

-- name: count_older
-- Count runs that ended longer ago than `age`.
select count(*) from {schema}runs where finished_at <= {now} - cast(:age as bigint) and session is null

-- name: pick_ended
-- Pick those of these runs that have ended and have no parent, with the columns of `pick_expired`.
with old as materialized (
    select id from {schema}runs where id {among(:rows, id uuid)} and finished_at is not null and session is null and parent is null
    order by id {lock_skip_locked}
)
select old.id, (select 1 from {schema}runs d where d.root = old.id limit 1),
    (select 1 from {schema}runs d where d.root = old.id and (d.finished_at is null or d.session is not null) limit 1)
from old order by old.id

-- name: pick_older
-- Pick runs that ended longer ago than `age` and have no parent, by id, with the columns of `pick_expired`.
with old as materialized (
    select id from {schema}runs
    where id > cast(:after as {uuid}) and finished_at <= {now} - cast(:age as bigint) and session is null and parent is null
    order by id limit 500 {lock_skip_locked}
)
select old.id, (select 1 from {schema}runs d where d.root = old.id limit 1),
    (select 1 from {schema}runs d where d.root = old.id and (d.finished_at is null or d.session is not null) limit 1)
from old order by old.id
