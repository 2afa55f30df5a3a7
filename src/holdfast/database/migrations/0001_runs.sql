-- Runs, worker sessions and history. Times are microseconds since 1970, UTC.
-- oldest code: 1

create table {schema}meta (
    name text primary key,
    value text not null
);

-- A lane is a queue and a task: what a worker claims from, and the first column of the ready index.
create table {schema}lanes (
    id {serial},
    queue text not null,
    task text not null,
    unique (queue, task)
);

-- One row per start of a worker process. The session owns the lease; running runs name their session.
create table {schema}workers (
    session text primary key,
    name text not null,
    lease_until bigint not null,
    started_at bigint not null,
    idle smallint not null default 0,
    info text not null
);

create table {schema}runs (
    {run_key},
    lane bigint not null,
    tenant text,
    priority int not null,
    turn bigint not null default 0,
    state text not null check (state in
        ('blocked', 'scheduled', 'ready', 'running', 'waiting', 'undoing', 'done', 'failed', 'cancelled', 'skipped')),
    held text,
    due_at bigint,
    deadline bigint,
    lifetime bigint,
    session text,
    fence bigint not null default 0,
    attempt int not null default 0,
    failures int not null default 0,
    crashes int not null default 0,
    max_crashes int not null,
    unique_name text,
    args text not null,
    result text,
    error text,
    options text,
    tags text,
    keep bigint not null,
    records int not null default 0,
    created_at bigint not null,
    claimed_at bigint,
    started_at bigint,
    finished_at bigint,
    expires_at bigint,
    check ((state in ('done', 'failed', 'cancelled', 'skipped')) = (finished_at is not null)),
    check (state <> 'running' or session is not null),
    check (state <> 'scheduled' or due_at is not null)
);

-- The index of the claim contains only ready rows, so that the cost of a claim depends on nothing else.
create index holdfast_runs_ready on {schema}runs (lane, priority desc, turn, seq) where state = 'ready' and held is null;
create index holdfast_runs_due on {schema}runs (due_at) where state = 'scheduled';
create index holdfast_runs_owned on {schema}runs (session) where session is not null;
create index holdfast_runs_deadline on {schema}runs (deadline) where deadline is not null and finished_at is null;
create index holdfast_runs_held on {schema}runs (held) where held is not null;
create index holdfast_runs_expiry on {schema}runs (expires_at) where expires_at is not null;

-- At most one unfinished run per unique name; also tells a successor whether a finished one is still being executed.
create unique index holdfast_runs_unique on {schema}runs (unique_name) where unique_name is not null and finished_at is null;
create index holdfast_runs_lingering on {schema}runs (unique_name)
    where unique_name is not null and finished_at is not null and session is not null;

-- Idempotency keys outlive their runs.
create table {schema}keys (
    scope text not null,
    key text not null,
    digest text not null,
    run {uuid} not null,
    created_at bigint not null,
    primary key (scope, key)
) {clustered};

-- History of runs, numbered under the run's lock. Enqueue and the current attempt are recorded in the run's own row.
-- fence: the claim under which the worker wrote the entry; null for entries by others.
create table {schema}history (
    run {uuid} not null,
    n int not null,
    at bigint not null,
    kind text not null,
    attempt int not null,
    fence bigint,
    session text,
    since bigint,
    data text,
    primary key (run, n)
) {clustered};

create view {schema}readable_runs as
select r.id, l.queue, l.task, r.state, r.held, r.priority, r.attempt, r.crashes, r.session, r.tenant, r.error,
    {time(r.created_at)} as created, {time(r.due_at)} as due, {time(r.started_at)} as started,
    {time(r.finished_at)} as finished
from {schema}runs r join {schema}lanes l on l.id = r.lane;

create view {schema}readable_history as
select run, n, {time(at)} as at, kind, attempt, session, {time(since)} as since, data from {schema}history;

create view {schema}readable_workers as
select session, name, {time(started_at)} as started, {time(lease_until)} as lease_until, idle from {schema}workers;
