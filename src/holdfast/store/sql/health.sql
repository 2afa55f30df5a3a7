-- name: server_facts
-- only: postgres
-- The server's settings and state that we depend on. Who listens is known by its last statement, which names our schema's channel; of
-- sessions of another user the server tells only what they call themselves.
select cast(current_setting('max_connections') as int), (select count(*) from pg_stat_activity where backend_type = 'client backend'),
    current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes'), current_setting('autovacuum'),
    case when pg_is_in_recovery() then 1 else 0 end, pg_notification_queue_usage(), current_setting('server_version'),
    (select count(*) from pg_stat_activity where datname = current_database() and (
        query = 'LISTEN "{channel}"' or (query = '<insufficient privilege>' and application_name = 'holdfast listener')
    ))

-- name: old_snapshots
-- only: postgres
-- Who keeps the server from cleaning up: the oldest transactions with a snapshot, prepared ones, and replication slots; how long in
-- microseconds, null where that isn't known.
select kind, pid, name, who, took, doing, query from (
    select 'transaction' as kind, pid, application_name as name, cast(usename as text) as who,
        cast(extract(epoch from clock_timestamp() - xact_start) * 1000000 as bigint) as took, state as doing, left(query, 100) as query
    from pg_stat_activity
    where xact_start is not null and (backend_xmin is not null or backend_xid is not null) and pid <> pg_backend_pid()
        and backend_type = 'client backend'
    union all
    select 'prepared', null, gid, cast(owner as text), cast(extract(epoch from clock_timestamp() - prepared) * 1000000 as bigint), null, null
    from pg_prepared_xacts
    union all
    select 'slot', active_pid, cast(slot_name as text), null, null, case when active then 'active' else 'inactive' end, null
    from pg_replication_slots where xmin is not null or catalog_xmin is not null
) holders
order by took desc nulls last limit 20

-- name: bloat
-- only: postgres
-- Our tables with how many live and dead rows they have, as far as the server knows, and how long ago they were cleaned up.
select s.relname, s.n_live_tup, s.n_dead_tup,
    cast(extract(epoch from clock_timestamp() - greatest(s.last_vacuum, s.last_autovacuum)) * 1000000 as bigint)
from pg_stat_user_tables s where s.relid in (
    select c.oid from pg_class c where c.relnamespace = (select relnamespace from pg_class where oid = cast('{schema}runs' as regclass))
)
order by s.n_dead_tup desc limit 20

-- name: file_facts
-- only: sqlite
-- SQLite's version, how the file is kept, its pages and the free ones among them, and the size of a page.
select sqlite_version(), j.journal_mode, p.page_count, f.freelist_count, s.page_size, d.file
from pragma_journal_mode j, pragma_page_count p, pragma_freelist_count f, pragma_page_size s, pragma_database_list d where d.name = 'main'
