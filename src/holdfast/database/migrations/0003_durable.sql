-- Durable functions: their checkpoints, their waits and their children.
-- oldest code: 2

-- root: the topmost ancestor of a run; null for that ancestor itself and for runs without relatives.
-- parent, spawn_key, place: the parent of a child, the call that spawned it ("generation:key"), and its index in a map.
-- generation: increases when the run restarts; checkpoints of older generations are deleted.
-- resumed: the run was woken from a wait, so the next claim continues the same attempt, which has used `spent` so far.
-- undos: the run may have compensations; ending and cause: its final state once they have run.
alter table {schema}runs add column root {uuid};
alter table {schema}runs add column parent {uuid};
alter table {schema}runs add column spawn_key text;
alter table {schema}runs add column place int;
alter table {schema}runs add column generation int not null default 0;
alter table {schema}runs add column resumed smallint not null default 0;
alter table {schema}runs add column spent bigint not null default 0;
alter table {schema}runs add column undos smallint not null default 0;
alter table {schema}runs add column ending text check (ending in ('failed', 'cancelled'));
alter table {schema}runs add column cause text;
alter table {schema}runs add column progress text;

create index holdfast_runs_children on {schema}runs (parent, spawn_key, place) where parent is not null;
create index holdfast_runs_blocked on {schema}runs (parent, spawn_key, place) where state = 'blocked';
create index holdfast_runs_tree on {schema}runs (root) where root is not null;
create index holdfast_runs_asleep on {schema}runs (lane) where state in ('waiting', 'blocked');

-- Checkpoints of durable functions, numbered in the order in which they were delivered to the code.
create table {schema}checkpoints (
    run {uuid} not null,
    generation int not null,
    n int not null,
    key text not null,
    kind text not null,
    value text,
    fence bigint not null,
    undo smallint not null default 0,
    took bigint,
    at bigint not null,
    primary key (run, generation, n)
) {clustered};

-- Waits of runs. outcome: null while open, then the result of the wait until the run has recorded it.
-- target: the event ("[tenant,name]"), the topic, or the spawn_key of children, of which `pending` are unfinished.
create table {schema}waits (
    run {uuid} not null,
    generation int not null,
    key text not null,
    kind text not null check (kind in ('sleep', 'event', 'message', 'children')),
    target text,
    eager smallint not null default 0,
    pending int,
    due_at bigint,
    since bigint not null,
    outcome text check (outcome in ('due', 'event', 'message', 'children', 'failed')),
    value text,
    settled_at bigint,
    primary key (run, generation, key),
    check ((outcome is null) = (settled_at is null))
) {clustered};

create index holdfast_waits_due on {schema}waits (due_at) where outcome is null and due_at is not null;
create index holdfast_waits_event on {schema}waits (target) where outcome is null and kind = 'event';

-- Events. A row without emitted_at is only waited for. emitted_by: the call that emitted first. more: some waiters have not been woken yet.
create table {schema}events (
    target text primary key,
    tenant text,
    name text not null,
    payload text,
    touched_at bigint not null,
    emitted_at bigint,
    emitted_by text,
    more smallint not null default 0,
    check (emitted_at is null or payload is not null)
);

create index holdfast_events_more on {schema}events (target) where more = 1;
create index holdfast_events_age on {schema}events (touched_at);

-- Messages to runs, numbered under the run's lock. sent_by: the call that sent it; taken_by: generation and key of the receive that consumed it.
create table {schema}messages (
    run {uuid} not null,
    n int not null,
    topic text not null,
    payload text not null,
    sent_at bigint not null,
    sent_by text,
    taken_by text,
    primary key (run, n)
) {clustered};

create index holdfast_messages_new on {schema}messages (run, topic, n) where taken_by is null;

-- Stream chunks that runs write for their followers.
create table {schema}chunks (
    run {uuid} not null,
    n int not null,
    attempt int not null,
    data text not null,
    at bigint not null,
    primary key (run, n)
) {clustered};

create view {schema}readable_checkpoints as
select run, generation, n, key, kind, value, took, {time(at)} as at from {schema}checkpoints;

create view {schema}readable_waits as
select run, key, kind, target, pending, {time(due_at)} as due, {time(since)} as since, outcome from {schema}waits;

create view {schema}readable_events as
select tenant, name, payload, {time(emitted_at)} as emitted from {schema}events;
