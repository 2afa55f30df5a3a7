-- name: pause_queues
-- Pause queues: no claim that starts after the commit takes their runs. Return those that weren't paused.
insert into {schema}queues (name, paused, paused_at)
select each.name, 1, {now} from {each(:rows, name text)}
where true
on conflict (name) do update set paused = 1, paused_at = excluded.paused_at where {schema}queues.paused = 0
returning name

-- name: resume_queues
-- Resume queues and notify idle workers. Return those that were paused.
update {schema}queues set paused = 0, paused_at = null
where name {among(:rows, name text)} and paused = 1
returning name, {notify_workers}

-- name: list_queues
-- List every queue that ever had a run or was paused.
select names.name, coalesce(q.paused, 0), q.paused_at
from (select queue as name from {schema}lanes union select name from {schema}queues) names
left join {schema}queues q on q.name = names.name
order by names.name

-- name: count_lanes
-- Count the lanes.
select count(*) from {schema}lanes

-- name: read_oldest_ready
-- Read by queue since when its oldest ready run has been ready, and the time.
--
-- It reads the first ready runs of each priority of a lane, by the ready index, so that a backlog costs little: several,
-- because in a fair queue, and among nodes of graphs, the first one isn't always the oldest.
with recursive levels as (
    select l.id as lane, (
        select r.priority from {schema}runs r where r.lane = l.id and r.state = 'ready' and r.held is null
        order by r.priority desc limit 1
    ) as priority from {schema}lanes l
    union all
    select levels.lane, (
        select r.priority from {schema}runs r
        where r.lane = levels.lane and r.state = 'ready' and r.held is null and r.priority < levels.priority
        order by r.priority desc limit 1
    ) from levels where levels.priority is not null
)
select l.queue, min((
    select min(coalesce(first.ready_at, first.created_at)) from (
        select r.ready_at, r.created_at from {schema}runs r
        where r.lane = levels.lane and r.state = 'ready' and r.held is null and r.priority = levels.priority
        order by r.turn, r.seq limit {limit}
    ) first
)), {now}
from levels join {schema}lanes l on l.id = levels.lane
where levels.priority is not null group by l.queue

-- name: count_ready
-- Count up to {limit} ready runs by lane.
select 'ready', lane, count(*) from (
    select lane from {schema}runs where state = 'ready' and held is null order by lane, priority desc limit {limit}
) found group by lane

-- name: count_held
-- Count up to {limit} held runs by state and lane.
select state, lane, count(*) from (
    select state, lane from {schema}runs where held is not null order by held limit {limit}
) found where state not in ('running', 'scheduled', 'waiting', 'blocked') group by state, lane

-- name: count_scheduled
-- Count up to {limit} scheduled runs by lane.
select 'scheduled', lane, count(*) from (
    select lane from {schema}runs where state = 'scheduled' order by due_at limit {limit}
) found group by lane

-- name: count_running
-- Count up to {limit} running runs by lane. Other runs that a session owns have ended or wait for it to release them.
select state, lane, count(*) from (
    select state, lane from {schema}runs where session is not null order by session limit {limit}
) found where state = 'running' group by state, lane

-- name: count_suspended
-- Count up to {limit} waiting and blocked runs by state and lane.
select state, lane, count(*) from (
    select state, lane from {schema}runs where state in ('waiting', 'blocked') order by lane limit {limit}
) found group by state, lane

-- name: count_unsuccessful
-- Count up to {limit} runs that ended in one unsuccessful state.
select count(*) from (
    select 1 from {schema}runs where coalesce(finished_at, 0) > 0 and state <> 'done' and state = cast(:state as text) limit {limit}
) found

-- name: estimate_total
-- only: postgres
-- Estimate the number of runs by the last vacuum or analyze; 0 if there was none.
select cast(greatest(reltuples, 0) as bigint) from pg_class where oid = cast(cast('{schema}runs' as regclass) as oid)

-- name: estimate_total
-- only: sqlite
-- Estimate the number of runs: at most as many as were created between the oldest and the newest.
select coalesce(max(seq) - min(seq) + 1, 0) from (
    select seq from (select min(seq) as seq from {schema}runs) a union all select seq from (select max(seq) as seq from {schema}runs) b
) ends

-- name: count_runs
-- Count up to {limit} runs.
select count(*) from (select 1 from {schema}runs limit {limit}) found

-- name: read_server_facts
-- only: postgres
-- Read the settings and the state of the server that Holdfast depends on.
--
-- Listeners are the running workers, except those that know that no notification reaches them.
select cast(current_setting('max_connections') as int), (select count(*) from pg_stat_activity where backend_type = 'client backend'),
    current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes'), current_setting('autovacuum'),
    case when pg_is_in_recovery() then 1 else 0 end, pg_notification_queue_usage(), current_setting('server_version'),
    (select count(*) from {schema}workers where lease_until > {now} and coalesce(wake_channel, '-') <> '')

-- name: read_wal_position
-- only: postgres
-- Read up to which byte of the write-ahead log a primary has written, or a standby replayed.
--
-- Also the time, and when the last transaction was committed that a standby has replayed.
select
    cast(pg_wal_lsn_diff(case when pg_is_in_recovery() then pg_last_wal_replay_lsn() else pg_current_wal_insert_lsn() end, '0/0') as bigint),
    {clock},
    cast(extract(epoch from pg_last_xact_replay_timestamp()) * 1000000.0 as bigint)

-- name: list_old_snapshots
-- only: postgres
-- List what keeps vacuum from removing dead rows: old transactions, prepared transactions and replication slots.
--
-- Ages are microseconds, null if unknown.
select kind, pid, name, who, took, doing, query from (
    select 'transaction' as kind, pid, application_name as name, cast(usename as text) as who,
        cast(extract(epoch from clock_timestamp() - xact_start) * 1000000.0 as bigint) as took, state as doing, left(query, 100) as query
    from pg_stat_activity
    where xact_start is not null and (backend_xmin is not null or backend_xid is not null) and pid <> pg_backend_pid()
        and backend_type = 'client backend'
    union all
    select 'prepared', null, gid, cast(owner as text), cast(extract(epoch from clock_timestamp() - prepared) * 1000000.0 as bigint), null, null
    from pg_prepared_xacts
    union all
    select 'slot', active_pid, cast(slot_name as text), null, null, case when active then 'active' else 'inactive' end, null
    from pg_replication_slots where xmin is not null or catalog_xmin is not null
) holders
order by took desc nulls last limit 20

-- name: list_table_bloat
-- only: postgres
-- List Holdfast's tables with live and dead rows, by the server's statistics, and the time since the last vacuum.
select s.relname, s.n_live_tup, s.n_dead_tup,
    cast(extract(epoch from clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum)) * 1000000.0 as bigint)
from pg_stat_user_tables s where s.relid in (
    select c.oid from pg_class c where c.relnamespace = (select relnamespace from pg_class where oid = cast(cast('{schema}runs' as regclass) as oid))
)
order by s.n_dead_tup desc limit 20

-- name: read_stored_bytes
-- only: postgres
-- Read the size of Holdfast's tables with their indexes.
select cast(coalesce(sum(pg_total_relation_size(c.oid)), 0) as bigint) from pg_class c
where c.relkind = 'r' and c.relnamespace = (select relnamespace from pg_class where oid = cast(cast('{schema}runs' as regclass) as oid))

-- name: read_stored_bytes
-- only: sqlite
-- Read the size of the used pages of the file.
select (p.page_count - f.freelist_count) * s.page_size from pragma_page_count p, pragma_freelist_count f, pragma_page_size s

-- name: read_file_facts
-- only: sqlite
-- Read SQLite's version, the journal mode, and the pages of the file.
select sqlite_version(), j.journal_mode, p.page_count, f.freelist_count, s.page_size, d.file
from pragma_journal_mode j, pragma_page_count p, pragma_freelist_count f, pragma_page_size s, pragma_database_list d where d.name = 'main'

-- name: long_waits
-- Find waits without a timeout that began long ago, the oldest first. Only so many suspended runs are read, in no particular
-- order: no index has the beginning of waits, because every wait would pay for it.
select s.id, l.task, w.key, w.kind, w.target, w.pending, w.due_at, w.since, w.outcome
from (
    select r.id, r.lane, r.generation from {schema}runs r where r.state in ('waiting', 'blocked') order by r.lane limit {limit}
) s
{lookup(waits w, w.run = s.id and w.generation = s.generation)}
join {schema}lanes l on l.id = s.lane
where w.outcome is null and w.due_at is null and w.kind not in ('sleep', 'children')
and w.since <= {now} - cast(:age as bigint)
order by w.since limit cast(:size as bigint)
