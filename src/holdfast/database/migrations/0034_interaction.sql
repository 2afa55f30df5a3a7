-- Values that runs show of themselves, and asks: messages that get a reply.

-- The latest value per name. version: increases with each change, so that a follower sees that there is a new one.
create table {schema}run_values (
    run {uuid} not null,
    name text not null,
    value text not null,
    version bigint not null,
    at bigint not null,
    primary key (run, name)
) {clustered};

-- ask: the key of an ask, which is handled once; null for other messages. answer, reply, answered_at: how it was answered.
alter table {schema}messages add column ask text;
alter table {schema}messages add column answer text check (answer in ('reply', 'rejected'));
alter table {schema}messages add column reply text;
alter table {schema}messages add column answered_at bigint;

create unique index holdfast_messages_asks on {schema}messages (run, ask) where ask is not null;
create index holdfast_messages_new_asks on {schema}messages (run, n) where ask is not null and taken_by is null;
