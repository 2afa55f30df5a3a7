-- name: open_session
-- Register a worker process. A repeat after a lost response changes nothing.
insert into {schema}workers (session, name, lease_until, started_at, idle, info, status, wake_channel, wake_group)
values (:session, :name, {clock} + cast(:lease as bigint), {clock}, 0, :info, :status, :channel, :wake_group)
on conflict do nothing

-- name: renew_session
-- Renew a lease and report the worker's status. An expired lease can't be renewed, even if its runs aren't recovered
-- yet.
update {schema}workers set lease_until = {clock} + cast(:lease as bigint), status = :status
where session = :session and lease_until > {clock}
returning lease_until

-- name: expire_sessions
-- End the leases of sessions whose processes have exited, so that their runs are recovered at once.
update {schema}workers set lease_until = {clock} where session {among(:rows, session text)} and lease_until > {clock}

-- name: mark_idle
-- Set whether a session wants to be notified of new work.
update {schema}workers set idle = cast(:idle as smallint) where session = :session and idle <> cast(:idle as smallint)

-- name: count_idle
-- Count the live sessions of a group that want to be notified of new work.
select count(*) from {schema}workers where idle = 1 and lease_until > {now} and wake_group = :wake_group

-- name: wake_next
-- only: postgres
-- Notify another idle worker of the group, and return whether there was one.
select count(cast(pg_notify(w.channel, '') as text)) from (
    select min(wake_channel) as channel from {schema}workers
    where idle = 1 and lease_until > {now} and wake_channel <> '' and wake_group = :wake_group and session <> :session
    having min(wake_channel) is not null
) w

-- name: unmark_unresponsive
-- only: postgres
-- Let the idle worker that is notified first be notified no more, because it didn't respond. If it is alive, it marks
-- itself again with its next poll.
with first as materialized (
    select session from {schema}workers
    where idle = 1 and lease_until > {now} and wake_channel <> '' and wake_group = :wake_group and session <> :session
    order by wake_channel limit 1 {lock_skip_locked}
)
update {schema}workers set idle = 0 where session {among(first, session)}

-- name: close_session
-- Delete the session of a worker that stopped, unless a run still names it.
--
-- min() uses the index; exists may scan the table, hoping to find one soon.
delete from {schema}workers
where session = :session and (select min(session) from {schema}runs where session = :session) is null
returning session

-- name: find_dead_sessions
-- Find sessions whose lease has expired, with the time since then, and sessions without a row that runs still name.
--
-- The recursion jumps from session to session in the index instead of reading every run.
with recursive held (session) as (
    select min(session) from {schema}runs where session is not null
    union all
    select (select min(r.session) from {schema}runs r where r.session > held.session) from held where held.session is not null
)
select session, expired_for from (
    select session, {clock} - lease_until as expired_for from {schema}workers where lease_until <= {clock}
    union all
    select held.session, 0 from held
    where held.session is not null and not exists (select 1 from {schema}workers w where w.session = held.session)
) dead
order by session limit 50

-- name: time_to_next_expiry
-- Read when the next lease expires, and the time.
select min(lease_until), {clock} from {schema}workers

-- name: lock_dead_sessions
-- Lock the rows of dead sessions against their own committers; skip those that are locked or alive after all.
select session, name from {schema}workers
where session {among(:rows, session text)} and lease_until <= {clock} {lock_exclusive}

-- name: count_runs_of_dead
-- Count the runs that had code in the process of each locked dead session, and store the count.
--
-- These are runs that were running, and runs that had timed out or been cancelled while their code went on. The count
-- decides who is charged with the crash. It is stored before the first run is recovered, because a large session is
-- recovered in several transactions.
update {schema}workers set died_with = coalesce(died_with, (
    select count(*) from {schema}runs r where r.session = {schema}workers.session
))
where session {among(:rows, session text)}
returning session, died_with

-- name: read_session_statuses
-- Read what dead sessions last reported.
select session, status from {schema}workers where session {among(:rows, session text)}

-- name: count_runs_of_unknown
-- Count the runs of sessions without a row, which can't store the count.
select session, count(*) from {schema}runs where session {among(:rows, session text)} group by session

-- name: excuse_session
-- Mark a session that lost its lease because the database didn't answer, so that none of its runs is charged.
update {schema}workers set died_with = 0 where session = :session

-- name: find_known_sessions
-- Find those of these sessions that have a row.
select session from {schema}workers where session {among(:rows, session text)}

-- name: pick_runs_of_dead
-- Pick runs of dead sessions, with the parents of those that may fail.
select id, case when state = 'running' and crashes >= max_crashes then parent end, session from {schema}runs
where session {among(:rows, session text)}
order by seq limit 500

-- name: release_ended_runs
-- Release runs that had ended while code in a dead session still worked on them.
update {schema}runs
set session = null, held = case when held = 'quiescing' then null else held end, records = records + 1
where id {among(:rows, id uuid)} and state <> 'running'
returning id, records, attempt, {notify_workers}

-- name: delete_dead_sessions
-- Delete dead sessions that no run names.
delete from {schema}workers
where session {among(:rows, session text)} and lease_until <= {clock}
and (select min(r.session) from {schema}runs r where r.session = {schema}workers.session) is null
returning session

-- name: record_lost_workers
-- Record which workers were lost: rows beside the statistics, whose span is 0, and which have the session as state.
--
-- Nothing is locked after it in the same transaction.
insert into {schema}tallies (span, at, lane, state, runs, waits, takes)
select 0, {now}, 0, each.session, each.runs, each.details, '' from {each(:rows, session text, runs bigint, details text)}
where true
on conflict (span, at, lane, state) do update set runs = {schema}tallies.runs + excluded.runs

-- name: list_lost_workers
-- List the workers that were lost within a time, the last first.
select at, state, runs, waits from {schema}tallies where span = 0 and at >= {now} - cast(:age as bigint)
order by at desc, state limit 1000

-- name: list_live_sessions
-- List sessions whose lease is valid.
select session, name, started_at, lease_until, info from {schema}workers where lease_until > {clock} order by session

-- name: list_sessions
-- List all sessions with their leases, the number of runs that name them, and the time.
select w.session, w.name, w.started_at, w.lease_until, w.idle, w.info,
    (select count(*) from {schema}runs r where r.session = w.session), w.status, {clock}
from {schema}workers w order by w.started_at, w.session

-- name: list_claimed
-- Read the runs that a session has claimed, or some of those of all sessions, the ones claimed first at the beginning.
--
-- Uses the index of owned runs, and reads a bounded number of rows.
select r.id, l.task, l.queue, r.attempt, coalesce(r.claimed_at, r.created_at), r.session, {clock} from (
    select id, lane, attempt, claimed_at, created_at, session from {schema}runs
    where session is not null and (cast(:session as text) is null or session = cast(:session as text))
    order by session limit cast(:most as bigint)
) r
join {schema}lanes l on l.id = r.lane
order by 5, r.id limit cast(:size as bigint)

-- name: count_claimed
-- Count the runs that these sessions have claimed, by session, queue and task. Uses the index of owned runs.
select r.session, l.queue, l.task, count(*) from {schema}runs r join {schema}lanes l on l.id = r.lane
where r.session {among(:rows, session text)}
group by r.session, l.queue, l.task

-- name: upsert_watcher
-- Register a client process that wants to be notified of ended runs, or extend its registration.
insert into {schema}watchers (id, expires_at) values (:id, {clock} + cast(:lifetime as bigint))
on conflict (id) do update set expires_at = excluded.expires_at

-- name: delete_watcher
-- Remove a client process that no longer wants to be notified.
delete from {schema}watchers where id = :id

-- name: prune_watchers
-- Delete the expired registrations of client processes that died.
delete from {schema}watchers where expires_at <= {now}
