-- Schedules create runs by the clock, triggers by polling.

-- app: the app that declared it. timing, rules: JSON. template: the run that each slot of a schedule creates.
-- next_at: the next slot, or a trigger's next poll; null if there is none.
-- orphaned: its app no longer declares it. passed_at: the last slot that was skipped because a run was unfinished.
-- poller, poll_until: the session that polls a trigger now, and when its right to do so expires; polls: the number of polls so far.
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

-- The last slots that created runs. asked: an operator requested it, not the clock.
create table {schema}slots (
    id {serial},
    schedule text not null,
    slot bigint not null,
    asked smallint not null default 0,
    run {uuid} not null
);

create unique index holdfast_slots_once on {schema}slots (schedule, slot) where asked = 0;
create index holdfast_slots_last on {schema}slots (schedule, id);

-- The last polls of triggers: start, duration in microseconds, requests returned, and how many of those were new.
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
