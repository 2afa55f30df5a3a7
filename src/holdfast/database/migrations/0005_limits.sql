-- Limits across all workers: concurrent runs, and starts per period.
-- oldest code: 4

-- limits: the counters that a run needs permits from, as a list; null for most runs. parked_on: the full counter that a parked run waits
-- for. A lane is limited once a run with limits was ever enqueued in it: its runs are claimed under the counters' locks.
alter table {schema}runs add column limits text;
alter table {schema}runs add column parked_on text;
alter table {schema}lanes add column limited smallint not null default 0;

create index holdfast_runs_parked on {schema}runs (parked_on, priority desc, turn, seq) where held = 'full';

-- Fair queues: the last turn of each tenant.
create index holdfast_runs_turns on {schema}runs (lane, coalesce(tenant, ''), turn) where state = 'ready' and turn > 0;

-- Declared limits. period: microseconds.
create table {schema}limit_settings (
    name text primary key,
    concurrency int,
    rate int,
    period bigint,
    declared_at bigint not null
);

-- The counter of a limit for one key, named [name, key] (place). A run holds its permit while its row names a session.
-- log: starts within the last period, as [[time, count], …]. look_at: when runs parked on this counter are checked again.
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
