-- name: lock_runs
-- Lock runs in order of creation and read what writers need to know of them.
select r.id, r.seq, r.state, r.session, r.fence, r.generation, r.tenant, r.root, r.parent, r.spawn_key, r.place, r.attempt, r.ending,
    r.kind, r.node, r.limits, r.options
from {schema}runs r where r.id {among(:rows, id uuid)}
order by r.seq {lock}

-- name: lock_expected_runs
-- only: postgres
-- Lock a session and runs in order of creation. Fail unless its lease is valid and each run is as expected: claimed by
-- the session with this fence, without limits; or without a fence, a graph with unfinished nodes and without a parent.
--
-- A transaction that knows what it will find sends this with its writes, and needn't wait for the rows of `lock_session`
-- and `lock_runs` (bench: continuations).
with alive as materialized (
    select 1, {acting_session(:session)} from {schema}workers where session = :session and lease_until > {clock} {lock_shared}
),
locked as materialized (
    select r.* from alive cross join lateral (
        select x.id, x.state, x.session, x.fence, x.kind, x.parent, x.limits from {schema}runs x
        where x.id {among(:rows, id uuid)} order by x.seq offset 0 {lock}
    ) r
),
found as materialized (
    select count(*) as runs, count(*) filter (where case
        when each.fence is null then locked.kind = 'graph' and locked.state = 'waiting' and locked.parent is null
        else locked.kind is null and locked.state = 'running' and locked.session = :session and locked.fence = each.fence
            and locked.limits is null end) as expected
    from {each(:rows, id uuid, fence bigint)} left join locked on locked.id = each.id
)
select {expect(found.runs = found.expected)} from found

-- name: lock_unlocked_runs
-- Lock those of the runs that no other transaction has locked.
select r.id, r.seq, r.state, r.session, r.fence, r.generation, r.tenant, r.root, r.parent, r.spawn_key, r.place, r.attempt, r.ending,
    r.kind, r.node, r.limits, r.options
from {schema}runs r where r.id {among(:rows, id uuid)}
order by r.seq {lock_skip_locked}

-- name: find_parents
-- Find the parents of runs, and whether each is a graph with a parent of its own, which may end with them.
with parents as materialized (
    select distinct parent from {schema}runs where id {among(:rows, id uuid)}
)
select p.id, case when p.kind = 'graph' and p.parent is not null then 1 else 0 end
from {schema}runs p where p.id {among(parents, parent)}

-- name: add_children
-- Insert children of locked runs. Those that exist (a repeat) are left out.
insert into {schema}runs (id, lane, tenant, priority, state, due_at, deadline, lifetime, max_crashes, args, options, tags, keep, keep_failed, created_at,
    root, parent, spawn_key, place, limits, turn)
select cast(each.id as {uuid}), each.lane, each.tenant, each.priority,
    case when each.blocked = 1 then 'blocked' when coalesce(each.run_at, {stamp} + each.delay) > {stamp} then 'scheduled' else 'ready' end,
    coalesce(each.run_at, {stamp} + each.delay),
    coalesce(each.deadline_at, {stamp} + each.deadline_in), coalesce(each.deadline_at - {stamp}, each.deadline_in),
    each.max_crashes, each.args, each.options, each.tags, each.keep, each.keep_failed, {stamp},
    cast(each.root as {uuid}), cast(each.parent as {uuid}), each.spawn_key, each.place, each.limits, {new_turn(each.turn)}
from {each(:rows, id uuid, lane bigint, tenant text, priority int, run_at bigint, delay bigint, deadline_at bigint, deadline_in bigint, max_crashes int, args text, options text, tags text, keep bigint, keep_failed bigint, blocked int, root uuid, parent uuid, spawn_key text, place int, limits text, turn bigint)}
where true
on conflict do nothing
returning id, {notify_workers}

-- name: end_runs
-- Cancel or fail unfinished runs from outside their worker, or only those that are overdue.
--
-- The session of a worker that still runs them stays until it releases them. Runs that may have compensations undo
-- first, once that worker has released them; runs that are undoing continue. coalesce keeps the planner from reading
-- all overdue runs.
update {schema}runs
set state = case when undos = 1 then 'ready' else cast(:state as text) end,
    ending = case when undos = 1 then cast(:state as text) end,
    cause = case when undos = 1 then :error end,
    error = :error, due_at = null, resumed = 0, paused_at = null,
    ready_at = case when undos = 1 then {now} else ready_at end,
    deadline = case when undos = 0 then deadline end,
    held = case when undos = 1 and session is not null then 'quiescing' end,
    failures = case when undos = 0 then failures else 0 end,
    crashes = case when undos = 0 then crashes else 0 end,
    deaths = 0,
    isolation = null,
    records = records + 1,
    finished_at = case when undos = 0 then {now} end,
    expires_at = case when undos = 0 and parent is null then {now} + coalesce(keep_failed, keep) end
where id {among(:rows, id uuid)} and finished_at is null and ending is null
and (cast(:overdue as int) = 0 or coalesce(deadline, {now} + 1) <= {now})
returning id, records, attempt, session, claimed_at, case when finished_at is null then 0 else 1 end, {notify_workers},
    case when finished_at is not null then {notify_clients} end

-- name: read_ended_runs
-- Read the values that the hooks of ended runs receive.
select r.id, l.queue, l.task, r.state, r.attempt, r.tenant, r.error, r.created_at, r.finished_at
from {schema}runs r join {schema}lanes l on l.id = r.lane where r.id {among(:rows, id uuid)}
order by r.seq

-- name: read_options_of_ended
-- Read the stored options of runs that ended without an attempt.
select r.id, r.options from {schema}runs r where r.id {among(:rows, id uuid)} and r.options is not null

-- name: lock_unfinished_children
-- Lock the unfinished children of runs, in order of creation.
select id from {schema}runs where parent {among(:rows, id uuid)} and finished_at is null and ending is null
order by seq {lock}

-- name: resolve_child_waits
-- Count ended children in the waits of their parents, and resolve waits that have none left.
--
-- An eager wait ends with the first failure. The target contains the generation.
update {schema}waits {indexed_by(holdfast_waits_children)}
set pending = pending - each.ended,
    outcome = case when eager = 1 and each.failed is not null then 'failed' when pending <= each.ended then 'children' end,
    value = case when eager = 1 then each.failed end,
    settled_at = case when (eager = 1 and each.failed is not null) or pending <= each.ended then {now} end
from {each(:rows, parent uuid, spawn_key text, ended int, failed text)}
where {schema}waits.run {matching(:rows, parent uuid)} and {schema}waits.run = each.parent
and {schema}waits.kind = 'children' and {schema}waits.target = each.spawn_key and {schema}waits.outcome is null

-- name: release_map_children
-- Make the next blocked children of a map ready.
with next as materialized (
    select id from {schema}runs
    where parent = cast(:parent as {uuid}) and spawn_key = :spawn_key and state = 'blocked' and place is not null
    order by place limit cast(:size as bigint)
)
update {schema}runs set state = case when due_at > {now} then 'scheduled' else 'ready' end, ready_at = {now} where id {among(next, id)}
returning id, {notify_workers}

-- name: count_unfinished_children
-- Count the unfinished children of one call, and find the first that didn't succeed.
select count(*) filter (where finished_at is null),
    (select f.id from {schema}runs f where f.parent = cast(:parent as {uuid}) and f.spawn_key = :spawn_key
        and f.state in ('failed', 'cancelled', 'skipped') order by f.finished_at, f.place limit 1)
from {schema}runs where parent = cast(:parent as {uuid}) and spawn_key = :spawn_key

-- name: read_children_page
-- Read a page of how the children of one call ended, in order: those of a map, or the one that was spawned.
select id, place, state, result, error, kind, options, tenant from (
    select id, place, state, result, error, kind, options, tenant from {schema}runs
    where parent = cast(:parent as {uuid}) and spawn_key = :spawn_key and place > cast(:after as int)
    order by place limit cast(:size as bigint)
) page
union all
select id, 0, state, result, error, kind, options, tenant from {schema}runs
where parent = cast(:parent as {uuid}) and spawn_key = :spawn_key and place is null and cast(:after as int) < 0
order by 2

-- name: read_spawned_page
-- Read a page of how the children of a run ended that weren't part of a map.
select spawn_key, id, state, result, error, kind, options, tenant from {schema}runs
where parent = cast(:parent as {uuid}) and place is null and finished_at is not null and spawn_key > cast(:after as text)
order by spawn_key limit 500

-- name: lock_failed_children
-- Lock the children of these runs that failed or were cancelled.
select id, parent, spawn_key from {schema}runs
where parent {among(:rows, id uuid)} and state in ('failed', 'cancelled')
order by seq {lock}

-- name: lock_children_of_calls
-- Lock the children of some calls of runs, in order of creation.
select r.id from {schema}runs r where r.parent {among(:rows, parent uuid)} and (r.parent, r.spawn_key) in (
    select cast(each.parent as {uuid}), each.spawn_key from {each(:rows, parent uuid, spawn_key text)}
)
order by r.seq {lock}

-- name: detach_children
-- Rename the calls of locked children, because their parent makes these calls again and creates new children.
update {schema}runs set spawn_key = each.detached
from {each(:rows, parent uuid, spawn_key text, detached text)}
where {schema}runs.parent {matching(:rows, parent uuid)} and {schema}runs.parent = each.parent
and {schema}runs.spawn_key = each.spawn_key

-- name: find_joined_calls
-- Find the calls whose children these runs have joined.
select c.run, c.key from {schema}checkpoints c
join {schema}runs r on r.id = c.run and r.generation = c.generation
where c.run {among(:rows, id uuid)} and r.id {among(:rows, id uuid)} and c.kind = 'join'

-- name: reopen_child_waits
-- Reopen waits for children that are retried. An eager wait stays resolved unless the failure that ended it is retried.
update {schema}waits
set pending = (
        select count(*) from {schema}runs c
        where c.parent = {schema}waits.run and c.spawn_key = {schema}waits.target and c.finished_at is null
    ), outcome = null, value = null, settled_at = null
from {each(:rows, parent uuid, generation int, spawn_key text)}
where {schema}waits.run {matching(:rows, parent uuid)} and {schema}waits.run = each.parent and {schema}waits.generation = each.generation
and {schema}waits.kind = 'children' and {schema}waits.target = each.spawn_key
and ({schema}waits.value is null or exists (
    select 1 from {schema}runs f where f.id = cast({schema}waits.value as {uuid}) and f.finished_at is null
))

-- name: read_map_checkpoints
-- Read the checkpoints of these runs' maps.
select c.run, c.generation, c.key, c.value from {schema}checkpoints c where c.run {among(:rows, id uuid)} and c.kind = 'map'

-- name: block_map_children
-- Block ready children of a map that exceed its concurrency.
update {schema}runs set state = 'blocked' where id {among(:rows, id uuid)} and state = 'ready'

-- name: count_active_children
-- Count the children of one call that are unfinished and not blocked.
select count(*) from {schema}runs
where parent = cast(:parent as {uuid}) and spawn_key = :spawn_key and finished_at is null and state <> 'blocked'
