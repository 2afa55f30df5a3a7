-- name: count_ready
-- Ready runs by lane; no more of them than so many, here and below.
select 'ready', lane, count(*) from (
    select lane from {schema}runs where state = 'ready' and held is null order by lane, priority desc limit {limit}
) found group by lane

-- name: count_held
-- Runs that are held back, by state and lane.
select state, lane, count(*) from (
    select state, lane from {schema}runs where held is not null order by held limit {limit}
) found where state not in ('running', 'scheduled', 'waiting', 'blocked') group by state, lane

-- name: count_scheduled
-- Scheduled runs by lane.
select 'scheduled', lane, count(*) from (
    select lane from {schema}runs where state = 'scheduled' order by due_at limit {limit}
) found group by lane

-- name: count_running
-- Running runs by lane. Others that a session is still at have ended, or wait for it to let go.
select state, lane, count(*) from (
    select state, lane from {schema}runs where session is not null order by session limit {limit}
) found where state = 'running' group by state, lane

-- name: count_asleep
-- Waiting and blocked runs by lane.
select state, lane, count(*) from (
    select state, lane from {schema}runs where state in ('waiting', 'blocked') order by lane limit {limit}
) found group by state, lane

-- name: count_unwell
-- Runs that ended in one bad way.
select count(*) from (
    select 1 from {schema}runs where coalesce(finished_at, 0) > 0 and state <> 'done' and state = cast(:state as text) limit {limit}
) found

-- name: believed_total
-- only: postgres
-- How many runs there are, as the last vacuum or analyze found; 0 where there was none.
select cast(greatest(reltuples, 0) as bigint) from pg_class where oid = cast('{schema}runs' as regclass)

-- name: believed_total
-- only: sqlite
-- How many runs there are at most: as many as came between the oldest and the newest.
select coalesce(max(seq) - min(seq) + 1, 0) from (
    select seq from (select min(seq) as seq from {schema}runs) a union all select seq from (select max(seq) as seq from {schema}runs) b
) ends

-- name: count_runs
-- All runs, no more than so many.
select count(*) from (select 1 from {schema}runs limit {limit}) found
