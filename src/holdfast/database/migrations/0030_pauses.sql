-- Pauses of tasks, tenants and single runs. Queues have theirs in `queues`.

-- resuming: 1 while the held runs of a tenant that is no longer paused are released.
create table {schema}pauses (
    kind text not null check (kind in ('task', 'tenant')),
    name text not null,
    paused_at bigint not null,
    paused_by text,
    resuming smallint not null default 0,
    primary key (kind, name)
) {clustered};

-- paused_at: since when the run isn't claimed; null for most runs.
alter table {schema}runs add column paused_at bigint;

-- Paused runs that became ready since and are still in the ready index.
create index holdfast_runs_paused on {schema}runs (paused_at) where paused_at is not null and state = 'ready' and held is null;

create view {schema}paused_tenants as
select name as tenant from {schema}pauses where kind = 'tenant' and resuming = 0;

{replace_view(paused_lanes)} as
select l.id from {schema}queues q join {schema}lanes l on l.queue = q.name where q.paused = 1
union all
select l.id from {schema}pauses p join {schema}lanes l on l.task = p.name where p.kind = 'task';
