-- Weighted limits, limits that are set at run time, and limits of steps.

-- weighted: 1 if starts have a cost. set_at, set_by: when and by whom other values than the declared ones were set, which are in declared_*
-- until they are reset.
alter table {schema}limit_settings add column weighted smallint not null default 0;
alter table {schema}limit_settings add column set_at bigint;
alter table {schema}limit_settings add column set_by text;
alter table {schema}limit_settings add column declared_concurrency int;
alter table {schema}limit_settings add column declared_rate int;
alter table {schema}limit_settings add column declared_period bigint;

-- steps: 1 while steps wait for the counter, or did shortly before.
alter table {schema}limits add column steps smallint not null default 0;

-- Permits that running steps hold, as in runs.limits. They return with the checkpoint of the step, or when its session releases the run.
create table {schema}step_permits (
    run {uuid} not null,
    key text not null,
    fence bigint not null,
    limits text not null,
    taken_at bigint not null,
    primary key (run, key)
) {clustered};

-- Steps that wait for a counter are waits for an event that nobody emits, named limit: and the counter. Their eager is 2, their pending is the
-- cost, and they have an outcome once there may be room.
create index holdfast_waits_limits on {schema}waits (target, since) where eager = 2;
