-- name: add_lanes
-- Interns pairs of queue and task.
insert into {schema}lanes (queue, task)
select each.queue, each.task from {each(:rows, queue text, task text)}
where true
on conflict do nothing

-- name: all_lanes
-- Every lane; there are as many as pairs of queue and task in use.
select id, queue, task, limited from {schema}lanes

-- name: add_keys
-- Takes idempotency keys; those already taken are left out of the answer. Waits for transactions that are taking the same key.
insert into {schema}keys (scope, key, digest, run, created_at)
select each.scope, each.key, each.digest, cast(each.run as {uuid}), {now}
from {each(:rows, scope text, key text, digest text, run uuid)}
where true
on conflict do nothing
returning scope, key

-- name: find_keys
-- What is kept under these idempotency keys.
select k.scope, k.key, k.digest, k.run
from {each(:rows, scope text, key text)} join {schema}keys k on k.scope = each.scope and k.key = each.key
where k.scope {among(:rows, scope text)} and k.key {among(:rows, key text)}

-- name: point_keys
-- Lets keys name the run that `unique` found instead of the one that was to be made.
update {schema}keys set run = cast(each.run as {uuid})
from {each(:rows, scope text, key text, run uuid)}
where {schema}keys.scope {among(:rows, scope text)} and {schema}keys.key {among(:rows, key text)}
and {schema}keys.scope = each.scope and {schema}keys.key = each.key

-- name: add_runs
-- New runs, ready or scheduled. Leaves out those that are there already (the same id: a repeat) and those whose unique name is taken.
insert into {schema}runs (id, lane, tenant, priority, state, due_at, deadline, lifetime, max_crashes, unique_name, args, options,
    tags, keep, created_at, limits, turn)
select cast(each.id as {uuid}), each.lane, each.tenant, each.priority,
    case when coalesce(each.run_at, {stamp} + each.delay) > {stamp} then 'scheduled' else 'ready' end,
    coalesce(each.run_at, {stamp} + each.delay),
    coalesce(each.deadline_at, {stamp} + each.deadline_in), coalesce(each.deadline_at - {stamp}, each.deadline_in),
    each.max_crashes, each.unique_name, each.args, each.options, each.tags, each.keep, {stamp}, each.limits, coalesce(each.turn, {turn_at({stamp})})
from {each(:rows, id uuid, lane bigint, tenant text, priority int, run_at bigint, delay bigint, deadline_at bigint, deadline_in bigint, max_crashes int, unique_name text, args text, options text, tags text, keep bigint, limits text, turn bigint)}
where true
on conflict do nothing
returning id, {notify_workers}

-- name: add_new_runs
-- only: postgres
-- The same for runs without a unique name, where a repeat is refused: to watch out for it at each row, and to tell which were made,
-- costs a fifth more (bench enqueue).
with added as (
    insert into {schema}runs (id, lane, tenant, priority, state, due_at, deadline, lifetime, max_crashes, args, options, tags, keep,
        created_at, limits, turn)
    select each.id, each.lane, each.tenant, each.priority,
        case when coalesce(each.run_at, {stamp} + each.delay) > {stamp} then 'scheduled' else 'ready' end,
        coalesce(each.run_at, {stamp} + each.delay),
        coalesce(each.deadline_at, {stamp} + each.deadline_in), coalesce(each.deadline_at - {stamp}, each.deadline_in),
        each.max_crashes, each.args, each.options, each.tags, each.keep, {stamp}, each.limits, coalesce(each.turn, {turn_at({stamp})})
    from {each(:rows, id uuid, lane bigint, tenant text, priority int, run_at bigint, delay bigint, deadline_at bigint, deadline_in bigint, max_crashes int, args text, options text, tags text, keep bigint, limits text, turn bigint)}
    returning 1
)
select {notify_workers} from added limit 1

-- name: lock_names
-- Lets batches with unique names in common go one after the other, so that they can't wait for each other in a circle.
select {name_lock(names.unique_name)} from (
    select each.unique_name from {each(:rows, unique_name text)} order by each.unique_name
) names

-- name: hold_successors
-- New runs whose unique name's last run has ended while its worker is still at it are held until that worker has let go.
-- A statement of its own: the insert may have waited for the one that ended that run, and looks with eyes from before. In a caller's
-- transaction that sees only its own beginning, all are held: the timekeeper looks again, with fresh eyes.
update {schema}runs set held = 'quiescing'
where id {among(:rows, id uuid)} and ({old_snapshot} or exists (
    select 1 from {schema}runs old
    where old.unique_name = {schema}runs.unique_name and old.finished_at is not null and old.session is not null
))

-- name: find_unique
-- The unfinished runs of these unique names.
select r.id, r.unique_name from {each(:rows, unique_name text)}
join {schema}runs r on r.unique_name = each.unique_name and r.finished_at is null
where r.unique_name {matching(:rows, unique_name text)}

-- name: find_ids
-- Which of these runs exist.
select r.id from {schema}runs r where r.id {among(:rows, id uuid)}

-- name: find_tables
-- only: postgres
-- Whether a caller's connection leads to tables of ours.
select to_regclass('{schema}meta') is not null

-- name: read_identity
-- What tells our tables from those of another database or schema.
select value from {schema}meta where name = 'identity'

-- name: begin_enqueue
-- In a caller's transaction: from here on it can be undone.
savepoint holdfast_enqueue

-- name: undo_enqueue
-- In a caller's transaction: undo what was done of an enqueue.
rollback to savepoint holdfast_enqueue

-- name: keep_enqueue
-- In a caller's transaction: the enqueue stands, as far as the transaction does.
release savepoint holdfast_enqueue

-- name: next_turns
-- In fair queues: the last turn that each tenant has ready, and the turn that is claimed next.
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
