-- name: open_session
-- A worker process has started. A repeat after a lost answer changes nothing.
insert into {schema}workers (session, name, lease_until, started_at, idle, info)
values (:session, :name, {moment} + cast(:lease as bigint), {moment}, 0, :info)
on conflict do nothing

-- name: renew_session
-- The heartbeat. A lease that has run out can't be renewed, even if nobody has taken its runs yet.
update {schema}workers set lease_until = {moment} + cast(:lease as bigint)
where session = :session and lease_until > {moment}
returning lease_until

-- name: mark_idle
-- Whether the session wants to be told of new work.
update {schema}workers set idle = cast(:idle as smallint) where session = :session

-- name: close_session
-- A worker has stopped; its row stays while a run still names it. (min goes by the index; exists may walk the table, hoping to meet one.)
delete from {schema}workers
where session = :session and (select min(session) from {schema}runs where session = :session) is null
returning session

-- name: dead_sessions
-- Sessions whose lease is over, and sessions that runs name but nobody knows. Goes from session to session by the index, not run by run.
with recursive held(session) as (
    select min(session) from {schema}runs where session is not null
    union all
    select (select min(r.session) from {schema}runs r where r.session > held.session) from held where held.session is not null
)
select session from (
    select session from {schema}workers where lease_until <= {moment}
    union
    select held.session from held
    where held.session is not null and not exists (select 1 from {schema}workers w where w.session = held.session)
) dead
order by session limit 50

-- name: next_expiry
-- How many microseconds until the next lease is over.
select min(lease_until) - {moment} from {schema}workers

-- name: lock_dead
-- Locks the rows of dead sessions against their own committers. Those that others hold, or that live after all, are left out.
select session from {schema}workers
where session {among(:rows, session text)} and lease_until <= {moment} {lock_whole}

-- name: known_sessions
-- Which of these sessions have a row.
select session from {schema}workers where session {among(:rows, session text)}

-- name: pick_lost
-- Runs that dead sessions hold, and the parents of those that will fail for it.
select id, case when state = 'running' and crashes >= max_crashes then parent end from {schema}runs
where session {among(:rows, session text)}
order by seq limit 500

-- name: recover_lost
-- Running runs of dead sessions go back to ready, or fail when they crashed too often; those that may have compensations are to undo
-- before they fail. Never touches finished ones.
update {schema}runs
set state = case when crashes >= max_crashes and (undos = 0 or ending is not null) then 'failed' else 'ready' end,
    ending = case when crashes >= max_crashes and undos = 1 and ending is null then 'failed' else ending end,
    cause = case when crashes >= max_crashes and undos = 1 and ending is null then :error else cause end,
    deadline = case when crashes >= max_crashes and undos = 1 then null else deadline end,
    crashes = case when crashes >= max_crashes and undos = 1 and ending is null then 0 else crashes + 1 end,
    error = case when crashes >= max_crashes then :error else error end,
    session = null,
    records = records + 1,
    finished_at = case when crashes >= max_crashes and (undos = 0 or ending is not null) then {now} end,
    expires_at = case when crashes >= max_crashes and (undos = 0 or ending is not null) and parent is null then {now} + keep end
where id {among(:rows, id uuid)} and state = 'running'
returning id, records, attempt, claimed_at, state, ending, {hint}, case when finished_at is not null then {end_hint} end

-- name: release_lost
-- Runs that had ended for everyone else while a dead session still worked on them are free now.
update {schema}runs
set session = null, held = case when held = 'quiescing' then null else held end, records = records + 1
where id {among(:rows, id uuid)} and state <> 'running'
returning id, records, attempt, {hint}

-- name: forget_sessions
-- Dead sessions that no run names any more.
delete from {schema}workers
where session {among(:rows, session text)} and lease_until <= {moment}
and (select min(r.session) from {schema}runs r where r.session = {schema}workers.session) is null

-- name: live_workers
-- The sessions whose lease is alive.
select session, name, started_at, lease_until, info from {schema}workers where lease_until > {moment} order by session
