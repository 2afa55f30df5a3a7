-- Topics: which tasks and functions receive messages, and the messages of the last days.

-- The tasks that subscribe. topics: JSON, what they select. template: JSON, the run that each message creates.
-- orphaned, former: as for schedules.
create table {schema}subscriptions (
    name text primary key,
    app text not null,
    topics text not null,
    template text not null,
    orphaned smallint not null default 0,
    orphaned_at bigint,
    former text,
    declared_at bigint not null
);

-- The functions that receive messages, from their first ctx.next to their end. inbox: the topic under which they are in `messages`.
-- tenant: empty for none. fields, wanted: JSON of the fields that are compared, and the digest of their values.
create table {schema}listeners (
    run {uuid} not null,
    inbox text not null,
    tenant text not null,
    topic text not null,
    fields text not null,
    wanted text not null,
    since bigint not null,
    primary key (run, inbox)
) {clustered};

create index holdfast_listeners_topic on {schema}listeners (tenant, topic, fields, wanted);

-- Published messages. runs, functions: how many runs they created, and to how many functions they were delivered.
create table {schema}publications (
    id {uuid} primary key,
    topic text not null,
    tenant text,
    payload text not null,
    runs int not null,
    functions int not null,
    published_at bigint not null
);

create index holdfast_publications_age on {schema}publications (published_at);
create index holdfast_publications_topic on {schema}publications (topic, published_at);

-- published_at: when a message that came from a topic was published; those that nobody takes are pruned.
alter table {schema}messages add column published_at bigint;

create index holdfast_messages_published on {schema}messages (published_at) where published_at is not null and taken_by is null;

create view {schema}readable_subscriptions as
select name as task, app, topics, orphaned, {time(declared_at)} as declared from {schema}subscriptions;

create view {schema}readable_publications as
select id, topic, tenant, payload, runs, functions, {time(published_at)} as published from {schema}publications;
