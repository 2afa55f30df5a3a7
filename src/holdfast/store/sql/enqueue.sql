-- name: add_keys
-- Take idempotency keys and return those that were free. Waits for transactions that are taking the same key.
insert into {schema}keys (scope, key, digest, run, created_at)
select each.scope, each.key, each.digest, cast(each.run as {uuid}), {now}
from {each(:rows, scope text, key text, digest text, run uuid)}
where true
on conflict do nothing
returning scope, key

-- name: find_keys
-- Find what is stored under these idempotency keys.
select k.scope, k.key, k.digest, k.run
from {each(:rows, scope text, key text)} join {schema}keys k on k.scope = each.scope and k.key = each.key
where k.scope {among(:rows, scope text)} and k.key {among(:rows, key text)}

-- name: redirect_keys
-- Let keys name the run that has the unique name instead of the one that was not created.
update {schema}keys set run = cast(each.run as {uuid})
from {each(:rows, scope text, key text, run uuid)}
where {schema}keys.scope {among(:rows, scope text)} and {schema}keys.key {among(:rows, key text)}
and {schema}keys.scope = each.scope and {schema}keys.key = each.key

-- name: add_runs
-- Insert new runs, ready or scheduled. Leaves out those that exist (a repeat) and those whose unique name is taken.
insert into {schema}runs (id, lane, tenant, priority, state, due_at, deadline, lifetime, max_crashes, unique_name, args, options,
    tags, keep, keep_failed, created_at, limits, turn)
select cast(each.id as {uuid}), each.lane, each.tenant, each.priority,
    case when coalesce(each.run_at, {stamp} + each.delay) > {stamp} then 'scheduled' else 'ready' end,
    coalesce(each.run_at, {stamp} + each.delay),
    coalesce(each.deadline_at, {stamp} + each.deadline_in), coalesce(each.deadline_at - {stamp}, each.deadline_in),
    each.max_crashes, each.unique_name, each.args, each.options, each.tags, each.keep, each.keep_failed, {stamp}, each.limits, coalesce(each.turn, {turn_at({stamp})})
from {each(:rows, id uuid, lane bigint, tenant text, priority int, run_at bigint, delay bigint, deadline_at bigint, deadline_in bigint, max_crashes int, unique_name text, args text, options text, tags text, keep bigint, keep_failed bigint, limits text, turn bigint)}
where true
on conflict do nothing
returning id, {notify_workers}

-- name: add_new_runs
-- only: postgres
-- Insert new runs without a unique name; fails on a repeat.
--
-- Checking each row for a conflict, and returning which were inserted, costs a fifth more (bench: enqueue).
with added as (
    insert into {schema}runs (id, lane, tenant, priority, state, due_at, deadline, lifetime, max_crashes, args, options, tags, keep, keep_failed,
        created_at, limits, turn)
    select each.id, each.lane, each.tenant, each.priority,
        case when coalesce(each.run_at, {stamp} + each.delay) > {stamp} then 'scheduled' else 'ready' end,
        coalesce(each.run_at, {stamp} + each.delay),
        coalesce(each.deadline_at, {stamp} + each.deadline_in), coalesce(each.deadline_at - {stamp}, each.deadline_in),
        each.max_crashes, each.args, each.options, each.tags, each.keep, each.keep_failed, {stamp}, each.limits, coalesce(each.turn, {turn_at({stamp})})
    from {each(:rows, id uuid, lane bigint, tenant text, priority int, run_at bigint, delay bigint, deadline_at bigint, deadline_in bigint, max_crashes int, args text, options text, tags text, keep bigint, keep_failed bigint, limits text, turn bigint)}
    returning 1
)
select {notify_workers} from added limit 1

-- name: lock_unique_names
-- Serialize batches with unique names in common, so that they can't deadlock.
select {name_lock(names.unique_name)} from (
    select each.unique_name from {each(:rows, unique_name text)} order by each.unique_name
) names

-- name: hold_successors
-- Hold new runs while the code of an ended run with the same unique name is still running.
--
-- A statement of its own: the insert may have waited for the transaction that ended that run, and has an older
-- snapshot. In a caller's transaction that sees only its own snapshot, all are held; timers check again.
update {schema}runs set held = 'quiescing'
where id {among(:rows, id uuid)} and ({old_snapshot} or exists (
    select 1 from {schema}runs old
    where old.unique_name = {schema}runs.unique_name and old.finished_at is not null and old.session is not null
))

-- name: find_unique_holders
-- Find the unfinished runs of these unique names.
select r.id, r.unique_name from {each(:rows, unique_name text)}
join {schema}runs r on r.unique_name = each.unique_name and r.finished_at is null
where r.unique_name {matching(:rows, unique_name text)}

-- name: find_existing
-- Find those of these runs that exist.
select r.id from {schema}runs r where r.id {among(:rows, id uuid)}

-- name: find_tables
-- only: postgres
-- Check whether a caller's connection leads to Holdfast tables.
select to_regclass('{schema}meta') is not null

-- name: read_identity
-- Read the random id of these tables.
select value from {schema}meta where name = 'identity'

-- name: begin_enqueue
-- Set a savepoint in a caller's transaction.
savepoint holdfast_enqueue

-- name: rollback_enqueue
-- Roll back a failed enqueue in a caller's transaction.
rollback to savepoint holdfast_enqueue

-- name: release_enqueue
-- Release the savepoint in a caller's transaction.
release savepoint holdfast_enqueue

-- name: read_turns
-- Read, for fair queues, the last turn that each tenant has ready and the turn that is claimed next.
select each.queue, each.tenant,
    (select max((
        select max(r.turn) from {schema}runs r
        where r.lane = l.id and coalesce(r.tenant, '') = each.tenant and r.state = 'ready' and r.turn > 0
    )) from {schema}lanes l where l.queue = each.queue),
    (select min((
        select r.turn from {schema}runs r where r.lane = l.id and r.state = 'ready' and r.held is null
        order by r.priority desc, r.turn, r.seq limit 1
    )) from {schema}lanes l where l.queue = each.queue)
from {each(:rows, queue text, tenant text)}
