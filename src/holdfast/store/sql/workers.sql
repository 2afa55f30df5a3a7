-- name: open_session
-- A worker process has started. A repeat after a lost answer changes nothing.
insert into {schema}workers (session, name, lease_until, started_at, idle, info, status)
values (:session, :name, {clock} + cast(:lease as bigint), {clock}, 0, :info, :status)
on conflict do nothing

-- name: renew_session
-- The heartbeat. A lease that has run out can't be renewed, even if nobody has taken its runs yet.
update {schema}workers set lease_until = {clock} + cast(:lease as bigint), status = :status
where session = :session and lease_until > {clock}
returning lease_until

-- name: expire_sessions
-- End the leases of sessions whose processes have ended, so that their runs are recovered at once.
update {schema}workers set lease_until = {clock} where session {among(:rows, session text)} and lease_until > {clock}

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
    select session from {schema}workers where lease_until <= {clock}
    union
    select held.session from held
    where held.session is not null and not exists (select 1 from {schema}workers w where w.session = held.session)
) dead
order by session limit 50

-- name: next_expiry
-- How many microseconds until the next lease is over.
select min(lease_until) - {clock} from {schema}workers

-- name: lock_dead
-- Locks the rows of dead sessions against their own committers. Those that others hold, or that live after all, are left out.
select session from {schema}workers
where session {among(:rows, session text)} and lease_until <= {clock} {lock_whole}

-- name: count_dead
-- Count the runs that had code in the process of each of these locked dead sessions: those that were running, and those that had timed out or
-- were cancelled while their code went on. Counted before the first of them is recovered: the count decides who is charged with the death,
-- and a large session is recovered in several transactions.
update {schema}workers set died_with = coalesce(died_with, (
    select count(*) from {schema}runs r where r.session = {schema}workers.session
))
where session {among(:rows, session text)}
returning session, died_with, status

-- name: running_of_sessions
-- The same for sessions without a row, which can't store the count.
select session, count(*) from {schema}runs where session {among(:rows, session text)} group by session

-- name: excuse_session
-- Mark a session that lost its lease because the database didn't answer: when its runs are recovered, none of them is charged.
update {schema}workers set died_with = 0 where session = :session

-- name: known_sessions
-- Which of these sessions have a row.
select session from {schema}workers where session {among(:rows, session text)}

-- name: pick_lost
-- Runs that dead sessions hold, and the parents of those that will fail for it.
select id, case when state = 'running' and crashes >= max_crashes then parent end, session from {schema}runs
where session {among(:rows, session text)}
order by seq limit 500

-- name: release_lost
-- Runs that had ended for everyone else while a dead session still worked on them are free now.
update {schema}runs
set session = null, held = case when held = 'quiescing' then null else held end, records = records + 1
where id {among(:rows, id uuid)} and state <> 'running'
returning id, records, attempt, {notify_workers}

-- name: forget_sessions
-- Dead sessions that no run names any more.
delete from {schema}workers
where session {among(:rows, session text)} and lease_until <= {clock}
and (select min(r.session) from {schema}runs r where r.session = {schema}workers.session) is null

-- name: live_workers
-- The sessions whose lease is alive.
select session, name, started_at, lease_until, info from {schema}workers where lease_until > {clock} order by session
