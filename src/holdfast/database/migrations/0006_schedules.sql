-- Schedules, which make runs by the clock, and triggers, which make them by polling. Code without them makes none.

-- app: whose code declared it. timing, rules: when, and how, as JSON; of a schedule `template` is the run that each slot makes.
-- next_at: the slot that comes next, or when a trigger is polled next; null when there is none any more.
-- orphaned: it has disappeared from its app's code. passed_at: the last slot that made no run because one was unfinished.
-- poller, poll_until: the session that polls a trigger just now, and when it will have lost its right to; polls: how often it was.
create table {schema}schedules (
    name text primary key,
    kind text not null check (kind in ('schedule', 'trigger')),
    app text not null,
    queue text,
    task text,
    timing text not null,
    rules text not null,
    template text,
    next_at bigint,
    paused smallint not null default 0,
    orphaned smallint not null default 0,
    passed_at bigint,
    declared_at bigint not null,
    poller text,
    poll_until bigint,
    polls bigint not null default 0,
    check ((kind = 'schedule') = (template is not null)),
    check ((poller is null) = (poll_until is null))
);

create index holdfast_schedules_next on {schema}schedules (kind, next_at) where paused = 0 and orphaned = 0;

-- The last slots that made runs. asked: it wasn't the clock but an operator.
create table {schema}slots (
    id {serial},
    schedule text not null,
    slot bigint not null,
    asked smallint not null default 0,
    run {uuid} not null
);

create unique index holdfast_slots_once on {schema}slots (schedule, slot) where asked = 0;
create index holdfast_slots_last on {schema}slots (schedule, id);

-- The last polls of triggers: when, how long in microseconds, how many requests came of it, how many of those were new.
create table {schema}polls (
    id {serial},
    trigger_name text not null,
    at bigint not null,
    took bigint not null,
    found int not null,
    made int not null,
    error text
);

create index holdfast_polls_last on {schema}polls (trigger_name, id);

create view {schema}readable_schedules as
select name, kind, app, task, timing, {time(next_at)} as next, paused, orphaned, {time(passed_at)} as passed,
    {time(declared_at)} as declared
from {schema}schedules;
