-- name: read_unique_name
-- Read the unique name of a run.
select unique_name from {schema}runs where id = cast(:id as {uuid})

-- name: retry_runs
-- Return failed and cancelled runs, and skipped nodes, to ready with new budgets; those that failed to undo continue
-- that.
--
-- They queue behind what is ready already. A run is held while code of it, or of another run of its unique name, is
-- still running. A run that waited for a unique name waits again. A run whose unique name has an unfinished run stays as it is. A debounced run collects no more calls.
update {schema}runs
set state = 'ready', held = case when substr(unique_name, length(unique_name), 1) = '+' then 'queued' when session is not null or (
        select 1 from {schema}runs old
        where old.unique_name = {schema}runs.unique_name and old.finished_at is not null and old.session is not null limit 1
    ) = 1 then 'quiescing' end, ready_at = {now}, turn = {next_turn({schema}runs, {now})}, attempt = 0, failures = 0, crashes = 0, deaths = 0,
    isolation = null, resumed = 0, spent = 0, paused_at = null,
    error = cause, result = null, deadline = case when ending is null then {now} + lifetime end, records = records + 1,
    started_at = null, finished_at = null, expires_at = null, debounce = null, start_by = null
where id {among(:rows, id uuid)} and state in ('failed', 'cancelled', 'skipped')
and (select 1 from {schema}runs other where other.unique_name = {schema}runs.unique_name and other.finished_at is null limit 1) is null
returning id, records, ending, generation, parent, spawn_key, place, kind, {notify_workers}

-- name: replace_arguments
-- Give a retried run other arguments, with which it starts over in a new generation, and the limits that follow from them.
update {schema}runs set args = cast(:args as text), limits = coalesce(cast(:limits as text), limits), generation = generation + 1, undos = 0, progress = null
where id = cast(:id as {uuid})
returning generation

-- name: list_open_waits
-- List what a locked run waits for.
select key, kind from {schema}waits
where run = cast(:run as {uuid}) and generation = cast(:generation as int) and outcome is null
order by since, key limit 100

-- name: reschedule_wait
-- Change when an open wait of a locked run is due.
update {schema}waits set due_at = cast(:due_at as bigint)
where run = cast(:run as {uuid}) and generation = cast(:generation as int) and key = :key and outcome is null

-- name: update_run
-- Change a locked run that waits to start. With a new time it is scheduled, and timers make it ready. A parked run with a
-- new time or other limits leaves its place to others and takes its limits again.
update {schema}runs set priority = coalesce(cast(:priority as int), priority), args = coalesce(cast(:args as text), args),
    tags = coalesce(cast(:tags as text), tags), due_at = coalesce(cast(:run_at as bigint), due_at),
    state = case when cast(:run_at as bigint) is null then state else 'scheduled' end, records = records + 1,
    held = case when held = 'full' and (cast(:run_at as bigint) is not null or cast(:limits as text) is not null) then null else held end,
    parked_on = case when cast(:run_at as bigint) is null and cast(:limits as text) is null then parked_on end,
    limits = coalesce(cast(:limits as text), limits)
where id = cast(:id as {uuid})
returning records, attempt

-- name: update_aged_priority
-- Change the priority of a locked run in a queue with `age_priority`: its stored options, and its turn by the difference.
update {schema}runs set options = :options, turn = turn + cast(:change as bigint) where id = cast(:id as {uuid})

-- name: next_history_number
-- Number the next history row of a locked run.
update {schema}runs set records = records + 1 where id = cast(:id as {uuid}) returning records, attempt

-- name: read_run_limits
-- Read the limits of a run.
select limits from {schema}runs where id = cast(:id as {uuid})

-- name: read_run_options
-- Read the stored options of a run.
select options from {schema}runs where id = cast(:id as {uuid})

-- name: fork_run
-- Insert a copy of a run with these options, and with other arguments if given. Its fence is 1, as if it had been claimed: it has checkpoints.
insert into {schema}runs (id, lane, tenant, priority, state, deadline, lifetime, max_crashes, fence, args, options, tags, keep, keep_failed, records, created_at, limits, turn)
select cast(:fork as {uuid}), r.lane, r.tenant, r.priority, 'ready', {now} + r.lifetime, r.lifetime, r.max_crashes, 1,
    coalesce(cast(:args as text), r.args), cast(:options as text), r.tags, r.keep, r.keep_failed, 1, {now}, r.limits, {next_turn(r, {now})}
from {schema}runs r where r.id = cast(:id as {uuid})
on conflict do nothing
returning id, {notify_workers}

-- name: fork_graph
-- Insert a copy of a graph's own row with these options, which waits for `pending` nodes.
insert into {schema}runs (id, lane, tenant, priority, state, deadline, lifetime, max_crashes, args, options, tags, keep, keep_failed, records, created_at, kind, pending, turn)
select cast(:fork as {uuid}), r.lane, r.tenant, r.priority, 'waiting', {now} + r.lifetime, r.lifetime, r.max_crashes,
    r.args, cast(:options as text), r.tags, r.keep, r.keep_failed, 1, {now}, 'graph', cast(:pending as int), {next_turn(r, {now})}
from {schema}runs r where r.id = cast(:id as {uuid})
on conflict do nothing
returning id

-- name: read_nodes_to_fork
-- Read a page of a graph's nodes by name, as they are stored.
select r.seq, r.id, r.node, r.kind, r.state, r.error, r.lane, r.tenant, r.priority, r.lifetime, r.max_crashes, r.args, r.options,
    r.tags, r.keep, r.keep_failed, r.limits, r.plan
from {schema}runs r
where r.parent = cast(:graph as {uuid}) and r.node is not null and r.node > cast(:after as text)
order by r.node limit 500

-- name: read_metadata_of
-- Read the metadata of runs.
select run, name, value from {schema}metadata where run {among(:rows, id uuid)} order by run, name

-- name: copy_node_outcomes
-- Copy the outcomes of nodes that a fork keeps, if they are still in these states. Payloads are copied by the database,
-- except those that the fork stores in another form.
update {schema}runs
set state = each.state, result = coalesce(each.result, (select o.result from {schema}runs o where o.id = each.original)),
    args = coalesce(each.args, (select o.args from {schema}runs o where o.id = each.original)),
    error = (select o.error from {schema}runs o where o.id = each.original),
    finished_at = {stamp}, records = 1
from {each(:rows, id uuid, original uuid, state text, args text, result text)}
where {schema}runs.id {matching(:rows, id uuid)} and {schema}runs.id = each.id
and (select o.state from {schema}runs o where o.id = each.original) = each.state
returning {schema}runs.id

-- name: copy_metadata
-- Copy the metadata of a run to its fork.
insert into {schema}metadata (run, name, value)
select cast(:fork as {uuid}), m.name, m.value from {schema}metadata m where m.run = cast(:id as {uuid})

-- name: list_steps_to_fork
-- List the checkpoints of a run since its last restart; with values only where a fork needs them.
select c.n, c.key, c.kind, case when c.kind in ('undone', 'join', 'permit') then c.value end, c.undo, c.took, c.at, c.generation
from {schema}runs r join {schema}checkpoints c on c.run = r.id and c.generation = r.generation
where r.id = cast(:id as {uuid}) order by c.n

-- name: copy_checkpoints
-- Insert the checkpoints that a fork takes over. Values are copied by the database, because all of them together may be
-- very large, except those that the fork stores in another form.
insert into {schema}checkpoints (run, generation, n, key, kind, value, fence, undo, took, at)
select cast(each.run as {uuid}), 0, each.n, each.key, each.kind, coalesce(each.value, (
        select c.value from {schema}checkpoints c
        where c.run = cast(:id as {uuid}) and c.generation = each.generation and c.n = each.n
    )), 0, 0, each.took, each.at
from {each(:rows, run uuid, generation int, n int, key text, kind text, value text, took bigint, at bigint)}
where true
on conflict do nothing
