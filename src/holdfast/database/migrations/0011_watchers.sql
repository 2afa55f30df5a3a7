-- Client processes that wait for ends of runs want to be told of them: one row each, and only while they wait. Those who end runs look
-- here before they notify. A row whose process died is nobody's any more when its time is over.

create table {schema}watchers (
    id text primary key,
    expires_at bigint not null
);

create view {schema}readable_watchers as
select id, {time(expires_at)} as expires from {schema}watchers;
