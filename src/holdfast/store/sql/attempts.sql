-- name: session_alive
-- Holds the session's row and says whether its lease is alive.
select 1 from {schema}workers where session = :session and lease_until > {clock} {lock_shared}

-- name: end_attempts
-- only: postgres
-- Ends attempts: done, failed, to be tried again, or handed back, each with its history row. Fenced: a run that isn't this session's at
-- this fence any more is left alone. From the batch to its rows by key first, conditions after, then by the place of the locked row: no
-- statistics can turn that round (decision 3). A row that changed while this statement began may be passed over: the store asks again.
-- One statement: two in a transaction reached 50,000 rows/s where this reached 64,000 (bench jobs).
with alive as materialized (
    select 1 from {schema}workers where session = :session and lease_until > {clock} {lock_shared}
),
given as materialized (
    select each.* from alive cross join {each(:rows, id uuid, seq bigint, fence bigint, state text, kind text, result text, error text, delay bigint, failed int, lingers int)}
    order by each.seq
),
locked as materialized (
    select given.*, r.* from given cross join lateral (
        select x.ctid as place, x.fence as was_fence, x.session as was_session, x.state as was_state
        from {schema}runs x where x.id = given.id {lock}
    ) r
),
ended as (
    update {schema}runs run
    set state = locked.state,
        session = case when locked.lingers = 1 then run.session end,
        held = case when locked.lingers = 1 and locked.state in ('ready', 'scheduled') then 'quiescing' end,
        deaths = 0,
        isolation = null,
        due_at = case when locked.state = 'scheduled' then {stamp} + locked.delay end,
        result = locked.result,
        error = coalesce(locked.error, case when locked.state <> 'done' then run.error end),
        failures = run.failures + coalesce(locked.failed, 0),
        records = run.records + 1,
        finished_at = case when locked.state in ('done', 'failed') then {stamp} end,
        expires_at = case when locked.state in ('done', 'failed') then {stamp} + run.keep end
    from locked
    where run.ctid = locked.place and was_fence = locked.fence and was_session = :session and was_state = 'running'
    returning run.id, run.records, locked.kind, run.attempt, run.fence, run.claimed_at, locked.error
)
insert into {schema}history (run, n, at, kind, attempt, fence, session, since, data)
select id, records, {stamp}, kind, attempt, fence, :session, claimed_at, error from ended
returning run, fence, case when kind in ('done', 'failed') then {notify_clients} end

-- name: end_attempts
-- only: sqlite
-- counted
-- The same, without the history rows. Numbers of runs are never given twice, so that they find a run as well as its id, in half the time
-- (bench jobs). Coalesce keeps the planner from walking all runs of the session.
update {schema}runs
set state = each.state,
    session = case when each.lingers = 1 then session end,
    held = case when each.lingers = 1 and each.state in ('ready', 'scheduled') then 'quiescing' end,
    deaths = 0,
    isolation = null,
    due_at = case when each.state = 'scheduled' then {now} + each.delay end,
    result = each.result,
    error = coalesce(each.error, case when each.state <> 'done' then {schema}runs.error end),
    failures = failures + coalesce(each.failed, 0),
    records = records + 1,
    finished_at = case when each.state in ('done', 'failed') then {now} end,
    expires_at = case when each.state in ('done', 'failed') then {now} + keep end
from {each(:rows, seq bigint, fence bigint, state text, result text, error text, delay bigint, failed int, lingers int)}
where exists (select 1 from {schema}workers where session = :session and lease_until > {clock})
and {schema}runs.seq = each.seq and {schema}runs.fence = each.fence and coalesce({schema}runs.session, '') = :session
and {schema}runs.state = 'running'

-- name: record_ends
-- only: sqlite
-- The history rows of attempts that were ended in the same transaction, all of them.
insert into {schema}history (run, n, at, kind, attempt, fence, session, since, data)
select r.id, r.records, {now}, each.kind, r.attempt, r.fence, :session, r.claimed_at, each.error
from {each(:rows, seq bigint, kind text, error text)} cross join {schema}runs r where r.seq = each.seq

-- name: still_running
-- only: sqlite
-- Which of these attempts are the session's, so that they can end.
select r.id, r.fence from {each(:rows, seq bigint, fence bigint)} cross join {schema}runs r
where exists (select 1 from {schema}workers where session = :session and lease_until > {clock})
and r.seq = each.seq and r.fence = each.fence and coalesce(r.session, '') = :session and r.state = 'running'

-- name: crash_runs
-- Running runs whose process died return to ready. Only a run that died alone (together = 1) is charged with a crash; it fails when it
-- was charged more than max_crashes times, after its compensations if it may have any. `isolate` says when a run is isolated: 1 at once,
-- 0 never, null from its second death in a row on. An isolated run stays outside the ready index until a worker runs it with nothing else
-- but other isolated runs: at most a quarter of those that it died with.
update {schema}runs
set state = case when each.together = 1 and crashes >= max_crashes and (undos = 0 or ending is not null) then 'failed' else 'ready' end,
    ending = case when each.together = 1 and crashes >= max_crashes and undos = 1 and ending is null then 'failed' else ending end,
    cause = case
        when each.together = 1 and crashes >= max_crashes and undos = 1 and ending is null then coalesce(each.error, :too_many)
        else cause end,
    deadline = case when each.together = 1 and crashes >= max_crashes and undos = 1 then null else deadline end,
    crashes = case
        when each.together <> 1 then crashes
        when crashes >= max_crashes and undos = 1 and ending is null then 0
        else crashes + 1 end,
    deaths = case when each.together = 1 and crashes >= max_crashes then 0 when each.isolate = 0 then deaths else deaths + 1 end,
    isolation = case
        when each.isolate = 0 or (each.isolate is null and deaths = 0) or (each.together = 1 and crashes >= max_crashes) then null
        when isolation < each.together then (isolation + 3) / 4
        else (each.together + 3) / 4 end,
    held = case
        when (each.isolate = 1 or (each.isolate is null and deaths > 0)) and not (each.together = 1 and crashes >= max_crashes)
        then 'isolated' end,
    error = case
        when each.together = 1 and crashes >= max_crashes then coalesce(each.error, :too_many)
        else coalesce(each.error, {schema}runs.error) end,
    session = null,
    records = records + 1,
    finished_at = case when each.together = 1 and crashes >= max_crashes and (undos = 0 or ending is not null) then {now} end,
    expires_at = case
        when each.together = 1 and crashes >= max_crashes and (undos = 0 or ending is not null) and parent is null then {now} + keep end
from {each(:rows, id uuid, together int, isolate int, error text)}
where {schema}runs.id {matching(:rows, id uuid)} and {schema}runs.id = each.id and {schema}runs.state = 'running'
returning {schema}runs.id, records, attempt, claimed_at, {schema}runs.state, ending, {notify_workers},
    case when finished_at is not null then {notify_clients} end

-- name: recorded_ends
-- Which of these attempts have ended in the history: a repeat after a lost answer must not count as refused.
select h.run, h.fence from {each(:rows, id uuid, fence bigint)}
join {schema}history h on h.run = each.id
where h.run {matching(:rows, id uuid)} and h.fence = each.fence and h.session = :session and h.since is not null

-- name: let_go
-- The session's work on these runs, ended long ago for everyone else, is over now.
update {schema}runs
set session = null, held = case when held = 'quiescing' then null else held end, records = records + 1
from {each(:rows, id uuid, fence bigint)}
where {schema}runs.id {matching(:rows, id uuid)} and {schema}runs.id = each.id and {schema}runs.fence = each.fence
and coalesce(session, '') = :session and {schema}runs.state <> 'running'
returning {schema}runs.id, records, attempt, {schema}runs.fence, {schema}runs.limits, {notify_workers}

-- name: unhold_successors
-- Runs that were held until a predecessor of the same unique name was let go, and now have none.
with free as materialized (
    select r.id from {schema}runs r
    where r.held = 'quiescing' and r.session is null and (
        select 1 from {schema}runs old
        where old.unique_name = r.unique_name and old.finished_at is not null and old.session is not null limit 1
    ) is null
    order by r.seq limit 500 {lock_free}
)
update {schema}runs set held = null where id {among(free, id)}
returning id, {notify_workers}

-- name: add_history
-- Records of what happened to runs, numbered by `records` of the run's row under its lock.
insert into {schema}history (run, n, at, kind, attempt, fence, session, since, data)
select cast(each.run as {uuid}), each.n, {stamp}, each.kind, each.attempt, each.fence, each.session, each.since, each.data
from {each(:rows, run uuid, n int, kind text, attempt int, fence bigint, session text, since bigint, data text)}
