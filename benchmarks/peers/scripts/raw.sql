-- The minimal tables of a real library: jobs, their history, and steps.
create table job (
    id bigint generated always as identity primary key,
    queue text not null default 'default',
    name text not null,
    args jsonb not null,
    state smallint not null default 0, -- 0 ready, 1 running, 2 done
    priority smallint not null default 0,
    run_at timestamptz not null default now(),
    attempt smallint not null default 0,
    max_attempts smallint not null default 5,
    worker int,
    lease_until timestamptz,
    result jsonb,
    error text,
    created_at timestamptz not null default now(),
    started_at timestamptz,
    finished_at timestamptz
);
create index job_ready on job (queue, priority, id) where state = 0;
create index job_lease on job (lease_until) where state = 1;

create table event (
    id bigint generated always as identity,
    job bigint not null,
    kind smallint not null, -- 0 enqueued, 1 claimed, 2 done
    at timestamptz not null default now(),
    worker int,
    data jsonb
);
create index event_job on event (job);

create table step (
    job bigint not null,
    n int not null,
    name text not null,
    result jsonb,
    at timestamptz not null default now(),
    primary key (job, n)
);
