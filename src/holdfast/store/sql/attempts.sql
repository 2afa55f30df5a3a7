-- name: lock_session
-- Lock the session's row and check that its lease is valid. Notifications of this transaction skip the session itself.
select 1, {acting_session(:session)} from {schema}workers where session = :session and lease_until > {clock} {lock_shared}

-- name: act_for_session
-- only: postgres
-- Let notifications of this transaction skip the session, which claims in it.
select {acting_session(:session)}

-- name: end_attempts
-- only: postgres
-- End attempts (done, failed or retrying), each with its history row, if they still hold the run's fence.
--
-- Finds rows by primary key first, checks conditions afterwards, and updates by the ctid of the locked row, so that no
-- statistics can reorder it (decision 3). A row that changed while the statement began may be skipped: the store tries
-- again. One statement writes 64,000 rows/s where two in a transaction wrote 50,000 (bench: jobs).
with alive as materialized (
    select 1 from {schema}workers where session = :session and lease_until > {clock} {lock_shared}
),
given as materialized (
    select each.* from alive cross join {each(:rows, id uuid, seq bigint, fence bigint, state text, kind text, result text, error text, delay bigint, failed int, still_running int)}
    order by each.seq
),
locked as materialized (
    select given.*, r.* from given cross join lateral (
        select x.ctid as tid, x.fence as was_fence, x.session as was_session, x.state as was_state
        from {schema}runs x where x.id = given.id {lock}
    ) r
),
ended as (
    update {schema}runs run
    set state = locked.state,
        session = case when locked.still_running = 1 then run.session end,
        held = case when locked.still_running = 1 and locked.state in ('ready', 'scheduled') then 'quiescing' end,
        deaths = 0,
        isolation = null,
        due_at = case when locked.state = 'scheduled' then {stamp} + locked.delay end,
        result = locked.result,
        error = coalesce(locked.error, case when locked.state <> 'done' then run.error end),
        failures = run.failures + coalesce(locked.failed, 0),
        records = run.records + 1,
        finished_at = case when locked.state in ('done', 'failed') then {stamp} end,
        expires_at = {stamp} + case locked.state when 'done' then run.keep when 'failed' then coalesce(run.keep_failed, run.keep) end
    from locked
    where run.ctid = locked.tid and was_fence = locked.fence and was_session = :session and was_state = 'running'
    returning run.id, run.records, locked.kind, run.attempt, run.fence, run.claimed_at, locked.error
)
insert into {schema}history (run, n, at, kind, attempt, fence, session, since, data)
select id, records, {stamp}, kind, attempt, fence, :session, claimed_at, error from ended
returning run, fence, case when kind in ('done', 'failed') then {notify_other_clients(:watcher)} end

-- name: end_attempts
-- only: sqlite
-- counted
-- End attempts if they still hold the run's fence; `add_end_history` adds the history rows.
--
-- By `seq`, which is never reused: as exact as the id, and twice as fast (bench: jobs). coalesce keeps the planner from
-- reading all runs of the session.
update {schema}runs
set state = each.state,
    session = case when each.still_running = 1 then session end,
    held = case when each.still_running = 1 and each.state in ('ready', 'scheduled') then 'quiescing' end,
    deaths = 0,
    isolation = null,
    due_at = case when each.state = 'scheduled' then {now} + each.delay end,
    result = each.result,
    error = coalesce(each.error, case when each.state <> 'done' then {schema}runs.error end),
    failures = failures + coalesce(each.failed, 0),
    records = records + 1,
    finished_at = case when each.state in ('done', 'failed') then {now} end,
    expires_at = {now} + case each.state when 'done' then keep when 'failed' then coalesce(keep_failed, keep) end
from {each(:rows, seq bigint, fence bigint, state text, result text, error text, delay bigint, failed int, still_running int)}
where exists (select 1 from {schema}workers where session = :session and lease_until > {clock})
and {schema}runs.seq = each.seq and {schema}runs.fence = each.fence and coalesce({schema}runs.session, '') = :session
and {schema}runs.state = 'running'

-- name: add_end_history
-- only: sqlite
-- Add the history rows of attempts that were ended in the same transaction, all of them.
insert into {schema}history (run, n, at, kind, attempt, fence, session, since, data)
select r.id, r.records, {now}, each.kind, r.attempt, r.fence, :session, r.claimed_at, each.error
from {each(:rows, seq bigint, kind text, error text)} cross join {schema}runs r where r.seq = each.seq

-- name: find_running_attempts
-- only: sqlite
-- Find those of these attempts that still hold their run's fence.
select r.id, r.fence from {each(:rows, seq bigint, fence bigint)} cross join {schema}runs r
where exists (select 1 from {schema}workers where session = :session and lease_until > {clock})
and r.seq = each.seq and r.fence = each.fence and coalesce(r.session, '') = :session and r.state = 'running'

-- name: crash_runs
-- Return running runs whose process died to ready, or fail those that were charged too often.
--
-- Only a run that died alone (runs_in_process = 1) is charged with a crash. When it was charged more than max_crashes
-- times it fails, after its compensations if it may have any. `isolate` says when a run is isolated: 1 at once, 0
-- never, null from its second death in a row on. An isolated run stays outside the ready index until a worker runs it
-- beside nothing but other isolated runs: at most a quarter of those that it died with.
update {schema}runs
set state = case when each.runs_in_process = 1 and crashes >= max_crashes and (undos = 0 or ending is not null) then 'failed' else 'ready' end,
    ending = case when each.runs_in_process = 1 and crashes >= max_crashes and undos = 1 and ending is null then 'failed' else ending end,
    cause = case
        when each.runs_in_process = 1 and crashes >= max_crashes and undos = 1 and ending is null then coalesce(each.error, :too_many)
        else cause end,
    deadline = case when each.runs_in_process = 1 and crashes >= max_crashes and undos = 1 then null else deadline end,
    crashes = case
        when each.runs_in_process <> 1 then crashes
        when crashes >= max_crashes and undos = 1 and ending is null then 0
        else crashes + 1 end,
    deaths = case when each.runs_in_process = 1 and crashes >= max_crashes then 0 when each.isolate = 0 then deaths else deaths + 1 end,
    isolation = case
        when each.isolate = 0 or (each.isolate is null and deaths = 0) or (each.runs_in_process = 1 and crashes >= max_crashes) then null
        when isolation < each.runs_in_process then (isolation + 3) / 4
        else (each.runs_in_process + 3) / 4 end,
    held = case
        when (each.isolate = 1 or (each.isolate is null and deaths > 0)) and not (each.runs_in_process = 1 and crashes >= max_crashes)
        then 'isolated' end,
    error = case
        when each.runs_in_process = 1 and crashes >= max_crashes then coalesce(each.error, :too_many)
        else coalesce(each.error, {schema}runs.error) end,
    session = null,
    ready_at = case
        when each.runs_in_process = 1 and crashes >= max_crashes and (undos = 0 or ending is not null) then ready_at
        else {now} end,
    records = records + 1,
    finished_at = case when each.runs_in_process = 1 and crashes >= max_crashes and (undos = 0 or ending is not null) then {now} end,
    expires_at = case
        when each.runs_in_process = 1 and crashes >= max_crashes and (undos = 0 or ending is not null) and parent is null
        then {now} + coalesce(keep_failed, keep) end
from {each(:rows, id uuid, runs_in_process int, isolate int, error text)}
where {schema}runs.id {matching(:rows, id uuid)} and {schema}runs.id = each.id and {schema}runs.state = 'running'
returning {schema}runs.id, records, attempt, claimed_at, {schema}runs.state, ending, {notify_workers},
    case when finished_at is not null then {notify_clients} end

-- name: find_recorded_ends
-- Find those of these attempts whose end is in the history, so that a repeat after a lost response isn't rejected.
select h.run, h.fence from {each(:rows, id uuid, fence bigint)}
join {schema}history h on h.run = each.id
where h.run {matching(:rows, id uuid)} and h.fence = each.fence and h.session = :session and h.since is not null

-- name: release_runs
-- Release runs whose code has stopped after their attempt had ended.
update {schema}runs
set session = null, held = case when held = 'quiescing' then null else held end, records = records + 1
from {each(:rows, id uuid, fence bigint)}
where {schema}runs.id {matching(:rows, id uuid)} and {schema}runs.id = each.id and {schema}runs.fence = each.fence
and coalesce(session, '') = :session and {schema}runs.state <> 'running'
returning {schema}runs.id, records, attempt, {schema}runs.fence, {schema}runs.limits, {notify_workers}

-- name: add_history
-- Add history rows, numbered by `records` of the run's row under its lock.
insert into {schema}history (run, n, at, kind, attempt, fence, session, since, data)
select cast(each.run as {uuid}), each.n, {stamp}, each.kind, each.attempt, each.fence, each.session, each.since, each.data
from {each(:rows, run uuid, n int, kind text, attempt int, fence bigint, session text, since bigint, data text)}

-- name: end_tree_attempts
-- End attempts of locked runs in a tree; the caller has compared fences.
--
-- A run that suspends is ready again at once if one of its waits was resolved meanwhile. A run that reschedules itself
-- queues behind runs that are ready already; one that is handed back keeps its turn.
update {schema}runs
set state = case
        when each.kind = 'waiting' and exists (
            select 1 from {schema}waits w {indexed_by(holdfast_waits_resolved)}
            where w.run = {schema}runs.id and w.generation = {schema}runs.generation and w.outcome is not null
        ) then 'ready'
        else each.state end,
    turn = case when each.kind in ('waiting', 'moved', 'restarted', 'undoing') then {next_turn({schema}runs, {stamp})} else turn end,
    ready_at = case when each.state in ('done', 'failed', 'cancelled') then ready_at else {stamp} end,
    resumed = case when each.kind = 'waiting' then 1 else 0 end,
    spent = case when each.kind = 'waiting' then spent + {stamp} - claimed_at else 0 end,
    session = case when each.still_running = 1 then session end,
    held = case when each.still_running = 1 and each.state in ('ready', 'scheduled', 'waiting') then 'quiescing' end,
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
    expires_at = case
        when parent is not null then null
        when each.state = 'done' then {stamp} + keep
        when each.state in ('failed', 'cancelled') then {stamp} + coalesce(keep_failed, keep) end
from {each(:rows, id uuid, state text, kind text, result text, error text, delay bigint, failed int, still_running int, args text, drift text)}
where {schema}runs.id {matching(:rows, id uuid)} and {schema}runs.id = each.id
returning {schema}runs.id, {notify_workers}, case when finished_at is not null then {notify_other_clients(:watcher)} end

-- name: add_tree_history
-- Add the history rows of attempts that `end_tree_attempts` has ended: `records` numbers the last one of each.
insert into {schema}history (run, n, at, kind, attempt, fence, session, since, data)
select r.id, r.records - each.back, {stamp}, each.kind, each.attempt, each.fence, :session,
    case when each.fence is not null then r.claimed_at end, case when each.own_error = 1 then r.error else each.data end
from {each(:rows, run uuid, back int, kind text, attempt int, fence bigint, own_error int, data text)}
{lookup(runs r, r.id = each.run)}

-- name: trim_history
-- Delete the oldest history rows of locked runs that keep a limited number.
delete from {schema}history where run {among(:rows, run uuid)} and exists (
    select 1 from {each(:rows, run uuid, keep int)}
    where {schema}history.run = each.run and {schema}history.n <= (select r.records - each.keep from {schema}runs r where r.id = each.run)
)

-- name: read_outcome
-- Read whether and how a run ended.
select case when ending is not null and finished_at is null then 'undoing' else state end, result, error, kind, options, tenant
from {schema}runs where id = cast(:id as {uuid})

-- name: read_outcomes
-- Read whether and how many runs ended.
select id, case when ending is not null and finished_at is null then 'undoing' else state end, result, error, kind, options, tenant
from {schema}runs where id {among(:rows, id uuid)}
