-- name: add_lanes
-- Interns pairs of queue and task.
insert into {schema}lanes (queue, task)
select each.queue, each.task from {each(:rows, queue text, task text)}
where true
on conflict do nothing

-- name: all_lanes
-- Every lane; there are as many as pairs of queue and task in use.
select id, queue, task from {schema}lanes

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

-- name: point_keys
-- Lets keys name the run that `unique` found instead of the one that was to be made.
update {schema}keys set run = cast(each.run as {uuid})
from {each(:rows, scope text, key text, run uuid)}
where {schema}keys.scope = each.scope and {schema}keys.key = each.key

-- name: add_runs
-- New runs, ready or scheduled. Leaves out those that are there already (the same id: a repeat) and those whose unique name is taken.
-- A unique name whose last run ended while its worker is still at it is held until that worker has let go.
insert into {schema}runs (id, lane, tenant, priority, state, held, due_at, deadline, lifetime, max_crashes, unique_name, args, options,
    tags, keep, created_at)
select cast(each.id as {uuid}), each.lane, each.tenant, each.priority,
    case when coalesce(each.run_at, {now} + each.delay) > {now} then 'scheduled' else 'ready' end,
    case when each.unique_name is not null and exists (
        select 1 from {schema}runs old
        where old.unique_name = each.unique_name and old.finished_at is not null and old.session is not null
    ) then 'quiescing' end,
    coalesce(each.run_at, {now} + each.delay),
    coalesce(each.deadline_at, {now} + each.deadline_in), coalesce(each.deadline_at - {now}, each.deadline_in),
    each.max_crashes, each.unique_name, each.args, each.options, each.tags, each.keep, {now}
from {each(:rows, id uuid, lane bigint, tenant text, priority int, run_at bigint, delay bigint, deadline_at bigint, deadline_in bigint, max_crashes int, unique_name text, args text, options text, tags text, keep bigint)}
where true
on conflict do nothing
returning id, {hint}

-- name: find_unique
-- The unfinished runs of these unique names, and runs with these ids.
select r.id, r.unique_name from {each(:rows, unique_name text)}
join {schema}runs r on r.unique_name = each.unique_name and r.finished_at is null

-- name: find_ids
-- Which of these runs exist.
select r.id from {each(:rows, id uuid)} join {schema}runs r on r.id = each.id
