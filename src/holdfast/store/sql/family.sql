-- name: parents_of
-- Whose children these runs are, and whether those may end with them and have parents of their own: graphs do.
with parents as materialized (
    select distinct parent from {schema}runs where id {among(:rows, id uuid)}
)
select p.id, case when p.kind = 'graph' and p.parent is not null then 1 else 0 end
from {schema}runs p where p.id {among(parents, parent)}

-- name: add_children
-- Children of runs that are locked. Those that are there already (a repeat) are left out.
insert into {schema}runs (id, lane, tenant, priority, state, due_at, deadline, lifetime, max_crashes, args, options, tags, keep, created_at,
    root, parent, spawn_key, place, limits, turn)
select cast(each.id as {uuid}), each.lane, each.tenant, each.priority,
    case when each.blocked = 1 then 'blocked' when coalesce(each.run_at, {stamp} + each.delay) > {stamp} then 'scheduled' else 'ready' end,
    coalesce(each.run_at, {stamp} + each.delay),
    coalesce(each.deadline_at, {stamp} + each.deadline_in), coalesce(each.deadline_at - {stamp}, each.deadline_in),
    each.max_crashes, each.args, each.options, each.tags, each.keep, {stamp},
    cast(each.root as {uuid}), cast(each.parent as {uuid}), each.spawn_key, each.place, each.limits, coalesce(each.turn, {turn_at({stamp})})
from {each(:rows, id uuid, lane bigint, tenant text, priority int, run_at bigint, delay bigint, deadline_at bigint, deadline_in bigint, max_crashes int, args text, options text, tags text, keep bigint, blocked int, root uuid, parent uuid, spawn_key text, place int, limits text, turn bigint)}
where true
on conflict do nothing
returning id, {notify_workers}

-- name: end_family
-- Ends attempts of locked runs that have a parent, children, or checkpoints; the caller has compared fences. A run that suspends is
-- ready again at once when something that it waits for has come meanwhile. A run that reschedules itself queues behind runs that are
-- ready already; one that is handed back keeps its place.
update {schema}runs
set state = case
        when each.kind = 'waiting' and exists (
            select 1 from {schema}waits w
            where w.run = {schema}runs.id and w.generation = {schema}runs.generation and w.outcome is not null
        ) then 'ready'
        else each.state end,
    turn = case when each.kind in ('waiting', 'moved', 'restarted', 'undoing') then {next_turn({schema}runs, {stamp})} else turn end,
    resumed = case when each.kind = 'waiting' then 1 else 0 end,
    spent = case when each.kind = 'waiting' then spent + {stamp} - claimed_at else 0 end,
    session = case when each.lingers = 1 then session end,
    held = case when each.lingers = 1 and each.state in ('ready', 'scheduled', 'waiting') then 'quiescing' end,
    deaths = 0,
    isolation = null,
    due_at = case when each.state = 'scheduled' then {stamp} + each.delay end,
    result = each.result,
    error = case
        when each.kind = 'undone' then cause
        else coalesce(each.error, case when each.state <> 'done' then {schema}runs.error end) end,
    cause = case when each.kind = 'undoing' then each.error when each.kind = 'undone' then null else cause end,
    ending = case when each.kind = 'undoing' then 'failed' when each.kind = 'undone' then null else ending end,
    deadline = case when each.kind = 'undoing' then null else deadline end,
    failures = case when each.kind in ('undoing', 'restarted', 'moved') then 0 else failures + coalesce(each.failed, 0) end,
    crashes = case when each.kind in ('undoing', 'restarted', 'moved') then 0 else crashes end,
    attempt = case when each.kind in ('restarted', 'moved') then 0 else attempt end,
    generation = case when each.kind in ('restarted', 'moved') then generation + 1 else generation end,
    undos = case when each.kind in ('restarted', 'moved') then 0 else undos end,
    args = coalesce(each.args, {schema}runs.args),
    records = records + case when each.drift is null then 1 else 2 end,
    finished_at = case when each.state in ('done', 'failed', 'cancelled') then {stamp} end,
    expires_at = case when each.state in ('done', 'failed', 'cancelled') and parent is null then {stamp} + keep end
from {each(:rows, id uuid, state text, kind text, result text, error text, delay bigint, failed int, lingers int, args text, drift text)}
where {schema}runs.id {matching(:rows, id uuid)} and {schema}runs.id = each.id
returning {schema}runs.id, records, claimed_at, {schema}runs.error, {notify_workers}, case when finished_at is not null then {notify_clients} end

-- name: end_runs
-- Unfinished runs end cancelled or failed, or only those of them that are overdue, for everyone but the worker that may still be at them:
-- its mark stays until it has let go. Those that may have compensations are to undo first, when that worker has let go; those that undo
-- already go on with it. (coalesce keeps the planner from walking all that are overdue.)
update {schema}runs
set state = case when undos = 1 then 'ready' else cast(:state as text) end,
    ending = case when undos = 1 then cast(:state as text) end,
    cause = case when undos = 1 then :error end,
    error = :error, due_at = null, resumed = 0,
    deadline = case when undos = 0 then deadline end,
    held = case when undos = 1 and session is not null then 'quiescing' end,
    failures = case when undos = 0 then failures else 0 end,
    crashes = case when undos = 0 then crashes else 0 end,
    deaths = 0,
    isolation = null,
    records = records + 1,
    finished_at = case when undos = 0 then {now} end,
    expires_at = case when undos = 0 and parent is null then {now} + keep end
where id {among(:rows, id uuid)} and finished_at is null and ending is null
and (cast(:overdue as int) = 0 or coalesce(deadline, {now} + 1) <= {now})
returning id, records, attempt, session, claimed_at, case when finished_at is null then 0 else 1 end, {notify_workers},
    case when finished_at is not null then {notify_clients} end

-- name: unfinished_children
-- The unfinished children of runs, in the order of arrival, locked.
select id from {schema}runs where parent {among(:rows, id uuid)} and finished_at is null and ending is null
order by seq {lock}

-- name: settle_children
-- Of what these parents wait for, so many children have ended. An eager wait ends with the first failure.
update {schema}waits
set pending = pending - each.ended,
    outcome = case when eager = 1 and each.failed is not null then 'failed' when pending <= each.ended then 'children' end,
    value = case when eager = 1 then each.failed end,
    settled_at = case when (eager = 1 and each.failed is not null) or pending <= each.ended then {now} end
from {each(:rows, parent uuid, generation int, spawn_key text, ended int, failed text)}
where {schema}waits.run {matching(:rows, parent uuid)} and {schema}waits.run = each.parent and {schema}waits.generation = each.generation
and {schema}waits.kind = 'children' and {schema}waits.target = each.spawn_key and {schema}waits.outcome is null

-- name: release_siblings
-- The next children of a map that were kept back become ready.
with next as materialized (
    select id from {schema}runs
    where parent = cast(:parent as {uuid}) and spawn_key = :spawn_key and state = 'blocked' and place is not null
    order by place limit cast(:size as bigint)
)
update {schema}runs set state = case when due_at > {now} then 'scheduled' else 'ready' end where id {among(next, id)}
returning id, {notify_workers}

-- name: children_left
-- Of the children of one call: how many are unfinished, and the first that didn't end well.
select count(*) filter (where finished_at is null),
    (select f.id from {schema}runs f where f.parent = cast(:parent as {uuid}) and f.spawn_key = :spawn_key
        and f.state in ('failed', 'cancelled', 'skipped') order by f.finished_at, f.place limit 1)
from {schema}runs where parent = cast(:parent as {uuid}) and spawn_key = :spawn_key

-- name: children_page
-- How the children of one call ended, in their order, by pages: those of a map, or the one that was spawned.
select id, place, state, result, error, kind, options from (
    select id, place, state, result, error, kind, options from {schema}runs
    where parent = cast(:parent as {uuid}) and spawn_key = :spawn_key and place > cast(:after as int)
    order by place limit cast(:size as bigint)
) page
union all
select id, 0, state, result, error, kind, options from {schema}runs
where parent = cast(:parent as {uuid}) and spawn_key = :spawn_key and place is null and cast(:after as int) < 0
order by 2

-- name: spawned_ends
-- How the children of a run that weren't part of a map ended, by pages.
select spawn_key, id, state, result, error, kind, options from {schema}runs
where parent = cast(:parent as {uuid}) and place is null and finished_at is not null and spawn_key > cast(:after as text)
order by spawn_key limit 500

-- name: ended_children
-- Children of these runs that failed or were cancelled, locked.
select id, parent, spawn_key from {schema}runs
where parent {among(:rows, id uuid)} and state in ('failed', 'cancelled')
order by seq {lock}

-- name: joined_keys
-- Which calls of children these runs have on record as ended.
select c.run, c.key from {schema}checkpoints c
join {schema}runs r on r.id = c.run and r.generation = c.generation
where c.run {among(:rows, id uuid)} and r.id {among(:rows, id uuid)} and c.kind = 'join'

-- name: reopen_waits
-- Children of these calls are tried again: who waited for them waits until they have ended. An eager wait stays over unless the failure
-- that ended it is among them.
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

-- name: map_checkpoints
-- What these runs have on record of their maps.
select c.run, c.generation, c.key, c.value from {schema}checkpoints c where c.run {among(:rows, id uuid)} and c.kind = 'map'

-- name: hold_back
-- Children of a map that wait for their turn.
update {schema}runs set state = 'blocked' where id {among(:rows, id uuid)} and state = 'ready'

-- name: children_at_work
-- How many children of one call are unfinished and not kept back.
select count(*) from {schema}runs
where parent = cast(:parent as {uuid}) and spawn_key = :spawn_key and finished_at is null and state <> 'blocked'

-- name: forget_records
-- The oldest entries of histories that are kept only so far.
delete from {schema}history where run {among(:rows, run uuid)} and exists (
    select 1 from {each(:rows, run uuid, n int)} where {schema}history.run = each.run and {schema}history.n <= each.n
)
