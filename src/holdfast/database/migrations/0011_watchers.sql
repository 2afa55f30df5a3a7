-- Clients that wait for results and want notifications, one row each, only while they wait. Statements that finish runs check this table
-- before they notify. The row of a dead process expires.

create table {schema}watchers (
    id text primary key,
    expires_at bigint not null
);

create view {schema}readable_watchers as
select id, {time(expires_at)} as expires from {schema}watchers;
