-- name: inspect_runs
-- Read the columns of runs as they are stored, whatever their type. `store/quarantine.py` has the order of the columns.
select r.id, {raw(r.priority)}, {raw(r.turn)}, {raw(r.due_at)}, {raw(r.deadline)}, {raw(r.lifetime)}, {raw(r.fence)}, {raw(r.attempt)},
    {raw(r.failures)}, {raw(r.crashes)}, {raw(r.max_crashes)}, {raw(r.keep)}, {raw(r.records)}, {raw(r.created_at)}, {raw(r.claimed_at)},
    {raw(r.started_at)}, {raw(r.place)}, {raw(r.generation)}, {raw(r.resumed)}, {raw(r.spent)}, {raw(r.undos)}, {raw(r.pending)},
    {raw(r.deaths)}, {raw(r.isolation)}, {raw(r.ready_at)}, {raw(r.keep_failed)}, {raw(r.start_by)},
    {raw(r.tenant)}, {raw(r.unique_name)}, {raw(r.args)}, {raw(r.options)}, {raw(r.tags)}, {raw(r.root)}, {raw(r.parent)},
    {raw(r.spawn_key)}, {raw(r.ending)}, {raw(r.cause)}, {raw(r.progress)}, {raw(r.kind)}, {raw(r.node)}, {raw(r.plan)}, {raw(r.limits)},
    {raw(r.parked_on)}, {raw(r.session)}, {raw(r.debounce)}
from {schema}runs r where r.id {among(:rows, id uuid)}

-- name: try_attempt
-- Change a run as attempts change it, to see whether the database accepts that; the caller rolls back.
update {schema}runs
set fence = fence + 1, attempt = attempt + 1, failures = failures + 1, crashes = crashes + 1, deaths = deaths + 1, records = records + 2,
    due_at = {now} + 1, deadline = case when deadline - {now} > 0 then deadline end, expires_at = {now} + keep,
    turn = {next_turn({schema}runs, {now})}, claimed_at = {now}, spent = spent + 1
where id = cast(:id as {uuid})

-- name: mend_runs
-- Replace the corrupt values of runs.
update {schema}runs
set priority = each.priority, turn = each.turn, due_at = case when {schema}runs.state = 'scheduled' then coalesce(each.due_at, {now}) else each.due_at end,
    deadline = each.deadline, lifetime = each.lifetime, fence = each.fence, attempt = each.attempt, failures = each.failures,
    crashes = each.crashes, max_crashes = each.max_crashes, keep = each.keep, records = each.records, created_at = each.created_at,
    claimed_at = each.claimed_at, started_at = each.started_at, place = each.place, generation = each.generation, resumed = each.resumed,
    spent = each.spent, undos = each.undos, pending = each.pending, deaths = each.deaths, isolation = each.isolation, ready_at = each.ready_at, keep_failed = each.keep_failed, start_by = each.start_by,
    tenant = each.tenant, unique_name = each.unique_name, args = each.args, options = each.options, tags = each.tags,
    root = cast(each.root as {uuid}), parent = cast(each.parent as {uuid}), spawn_key = each.spawn_key, ending = each.ending,
    cause = each.cause, progress = each.progress, kind = each.kind, node = each.node, plan = each.plan, limits = each.limits,
    parked_on = each.parked_on, session = each.session, debounce = each.debounce
from {each(:rows, id uuid, priority int, turn bigint, due_at bigint, deadline bigint, lifetime bigint, fence bigint, attempt int, failures int, crashes int, max_crashes int, keep bigint, records int, created_at bigint, claimed_at bigint, started_at bigint, place int, generation int, resumed smallint, spent bigint, undos smallint, pending int, deaths int, isolation int, ready_at bigint, keep_failed bigint, start_by bigint, tenant text, unique_name text, args text, options text, tags text, root uuid, parent uuid, spawn_key text, ending text, cause text, progress text, kind text, node text, plan text, limits text, parked_on text, session text, debounce text)}
where {schema}runs.id {matching(:rows, id uuid)} and {schema}runs.id = each.id

-- name: last_history_number
-- Read the number of the last history entry of a run.
select max(n) from {schema}history where run = cast(:id as {uuid})

-- name: mark_quarantined
-- Mark runs that failed because their rows were corrupt, so that `holdfast doctor` finds them.
update {schema}runs set held = 'corrupt' where id {among(:rows, id uuid)} and finished_at is not null

-- name: list_quarantined
-- List quarantined runs.
select id from {schema}runs where held = 'corrupt' limit {limit}

-- name: suspect_held
-- Read runs that are held back: parked, isolated, or waiting for code of a predecessor.
select id from {schema}runs where held is not null and finished_at is null order by held limit 1000

-- name: suspect_due
-- Read runs that are due, or whose wait or deadline is.
select id from (
    select id from {schema}runs where state = 'scheduled' and due_at <= {now} order by due_at limit 500
) due
union
select id from (
    select id from {schema}runs where deadline is not null and finished_at is null and deadline <= {now} order by deadline limit 500
) overdue
union
select run from (
    select run from {schema}waits where outcome is null and due_at is not null and due_at <= {now} order by due_at limit 500
) waiting

-- name: suspect_owned
-- Read runs of sessions.
select id from {schema}runs where session {among(:rows, session text)} limit 1000

-- name: suspect_unknown_sessions
-- Read runs that name a session without a row.
select id from {schema}runs where session is not null and session not in (select session from {schema}workers) limit 1000

-- name: suspect_waiters
-- Read runs that wait for emitted events.
select w.run from {schema}events e join {schema}waits w on w.target = e.target and w.outcome is null and w.kind = 'event'
where e.more = 1 limit 1000
