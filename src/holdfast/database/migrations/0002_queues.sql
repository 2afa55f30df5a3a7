-- Operator settings of queues. A queue without a row is open.

create table {schema}queues (
    name text primary key,
    paused smallint not null default 0,
    paused_at bigint,
    check ((paused = 1) = (paused_at is not null))
);

-- Lanes that are closed for claims. A claim reads this table once, regardless of the number of runs.
create view {schema}paused_lanes as
select l.id from {schema}queues q join {schema}lanes l on l.queue = q.name where q.paused = 1;

create view {schema}readable_queues as
select name, paused, {time(paused_at)} as paused_since from {schema}queues;
