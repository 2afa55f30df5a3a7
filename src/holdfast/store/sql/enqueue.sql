-- name: add_keys
-- Take idempotency keys and return those that were free. Waits for transactions that are taking the same key.
insert into {schema}keys (scope, key, digest, run, created_at, expires_at)
select each.scope, each.key, each.digest, cast(each.run as {uuid}), {now}, {now} + each.ttl
from {each(:rows, scope text, key text, digest text, run uuid, ttl bigint)}
where true
on conflict do nothing
returning scope, key

-- name: find_keys
-- Find what is stored under these idempotency keys, except those that have expired.
select k.scope, k.key, k.digest, k.run
from {each(:rows, scope text, key text)} join {schema}keys k on k.scope = each.scope and k.key = each.key
where k.scope {among(:rows, scope text)} and k.key {among(:rows, key text)} and (k.expires_at is null or k.expires_at > {now})

-- name: take_expired_keys
-- Take idempotency keys that have expired.
update {schema}keys set digest = each.digest, run = cast(each.run as {uuid}), created_at = {now}, expires_at = {now} + each.ttl
from {each(:rows, scope text, key text, digest text, run uuid, ttl bigint)}
where {schema}keys.scope {among(:rows, scope text)} and {schema}keys.key {among(:rows, key text)}
and {schema}keys.scope = each.scope and {schema}keys.key = each.key and {schema}keys.expires_at <= {now}
returning {schema}keys.scope, {schema}keys.key

-- name: redirect_keys
-- Let keys name the run that has the unique name instead of the one that was not created.
update {schema}keys set run = cast(each.run as {uuid})
from {each(:rows, scope text, key text, run uuid)}
where {schema}keys.scope {among(:rows, scope text)} and {schema}keys.key {among(:rows, key text)}
and {schema}keys.scope = each.scope and {schema}keys.key = each.key

-- name: add_runs
-- Insert new runs, ready or scheduled. Leaves out those that exist (a repeat) and those whose unique or debounce name is
-- taken.
insert into {schema}runs (id, lane, tenant, priority, state, due_at, deadline, lifetime, max_crashes, unique_name, debounce, held, args, options,
    tags, keep, keep_failed, created_at, limits, turn, start_by)
select cast(each.id as {uuid}), each.lane, each.tenant, each.priority,
    case when coalesce(each.run_at, {stamp} + each.delay) > {stamp} then 'scheduled' else 'ready' end,
    coalesce(each.run_at, {stamp} + each.delay),
    coalesce(each.deadline_at, {stamp} + each.deadline_in), coalesce(each.deadline_at - {stamp}, each.deadline_in),
    each.max_crashes, each.unique_name, each.debounce, each.held, each.args, each.options, each.tags, each.keep, each.keep_failed, {stamp}, each.limits, {new_turn(each.turn)},
    coalesce(each.start_by_at, {stamp} + each.start_in)
from {each(:rows, id uuid, lane bigint, tenant text, priority int, run_at bigint, delay bigint, deadline_at bigint, deadline_in bigint, max_crashes int, unique_name text, debounce text, held text, args text, options text, tags text, keep bigint, keep_failed bigint, limits text, turn bigint, start_by_at bigint, start_in bigint)}
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
        each.max_crashes, each.args, each.options, each.tags, each.keep, each.keep_failed, {stamp}, each.limits, {new_turn(each.turn)}
    from {each(:rows, id uuid, lane bigint, tenant text, priority int, run_at bigint, delay bigint, deadline_at bigint, deadline_in bigint, max_crashes int, args text, options text, tags text, keep bigint, keep_failed bigint, limits text, turn bigint)}
    returning 1
)
select {notify_workers} from added limit 1

-- name: add_metadata
-- Add the metadata of new runs.
insert into {schema}metadata (run, name, value)
select cast(each.run as {uuid}), each.name, each.value from {each(:rows, run uuid, name text, value text)}
where true
on conflict do nothing

-- name: lock_unique_names
-- Serialize batches with unique or debounce names in common, so that they can't deadlock.
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

-- name: start_queued_names
-- Give runs that wait for these unique names the names, if no unfinished run has them any more.
update {schema}runs set held = 'quiescing', unique_name = substr(unique_name, 1, length(unique_name) - 1)
where unique_name {among(:rows, unique_name text)} and finished_at is null and (
    select 1 from {schema}runs holder
    where holder.unique_name = substr({schema}runs.unique_name, 1, length({schema}runs.unique_name) - 1) and holder.finished_at is null limit 1
) is null
returning id

-- name: lock_debounced
-- Find the runs of these debounce names that have not started, and lock them in order of creation.
select r.id, r.debounce, r.created_at from {schema}runs r
where r.debounce {among(:rows, debounce text)} and r.debounce is not null and r.started_at is null and r.finished_at is null
order by r.seq {lock}

-- name: lock_unstarted
-- Lock those of these runs that have never started, in order of creation. One that is retried may have checkpoints.
select r.id from {schema}runs r where r.id {among(:rows, id uuid)} and r.claimed_at is null and r.finished_at is null
order by r.seq {lock}

-- name: replace_unstarted
-- Replace the arguments and options of locked runs that have not started by those of newer calls.
--
-- `latest` bounds the delay of a debounced run. A ready run whose time has come stays ready; its fence tells a claim on
-- SQLite that it has changed (docs/claims.md). A parked run takes its limits again. A run whose priority grows with
-- its age keeps its age.
with given as materialized (
    select each.*, coalesce(each.run_at, case when each.latest < {stamp} + each.delay then each.latest else {stamp} + each.delay end, {stamp}) as due
    from {each(:rows, target uuid, lane bigint, priority int, run_at bigint, delay bigint, latest bigint, deadline_at bigint, deadline_in bigint, max_crashes int, args text, options text, tags text, keep bigint, keep_failed bigint, limits text, start_by_at bigint, start_in bigint)}
)
update {schema}runs
set lane = given.lane, priority = given.priority,
    state = case when {schema}runs.state = 'ready' and given.due <= {stamp} then 'ready' else 'scheduled' end,
    due_at = case when {schema}runs.state = 'ready' and given.due <= {stamp} then null else given.due end,
    fence = fence + case when {schema}runs.state = 'ready' then 1 else 0 end,
    held = case when held = 'full' then null else held end, parked_on = null,
    turn = case when turn > 0 then turn else turn + {age_shift({schema}runs)} - {age_shift(given)} end,
    deadline = coalesce(given.deadline_at, {stamp} + given.deadline_in), lifetime = coalesce(given.deadline_at - {stamp}, given.deadline_in),
    max_crashes = given.max_crashes, args = given.args, options = given.options, tags = given.tags,
    keep = given.keep, keep_failed = given.keep_failed, limits = given.limits,
    start_by = coalesce(given.start_by_at, {stamp} + given.start_in)
from given
where {schema}runs.id {matching(:rows, target uuid)} and {schema}runs.id = given.target
returning {schema}runs.id, {notify_workers}

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
