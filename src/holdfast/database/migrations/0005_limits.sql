-- Limits: how many runs may be at work at once, and how many may start in a while, across all workers.
-- oldest code: 4

-- limits: of a run, the places of the counters that it needs a permit of, as a list; null for most. parked_on: the full one of them that it
-- waits for while it is held. A lane is limited when a run with limits was ever put into it: its runs are claimed with more care.
alter table {schema}runs add column limits text;
alter table {schema}runs add column parked_on text;
alter table {schema}lanes add column limited smallint not null default 0;

create index holdfast_runs_parked on {schema}runs (parked_on, priority desc, turn, seq) where held = 'full';

-- Fair queues: the last turn of each tenant.
create index holdfast_runs_turns on {schema}runs (lane, coalesce(tenant, ''), turn) where state = 'ready' and turn > 0;

-- What was declared. period: microseconds.
create table {schema}limit_settings (
    name text primary key,
    concurrency int,
    rate int,
    period bigint,
    declared_at bigint not null
);

-- A counter of a limit for one key; its place is both, as [name, key]. A permit is held as long as the run's row names a session.
-- log: when runs were started within the last period, as [[time, count], …]. look_at: when those that are parked on it are to be looked at.
create table {schema}limits (
    place text primary key,
    name text not null,
    used int not null default 0,
    log text not null default '[]',
    look_at bigint,
    touched_at bigint not null,
    check (used >= 0)
);

create index holdfast_limits_look on {schema}limits (look_at) where look_at is not null;
create index holdfast_limits_name on {schema}limits (name);
