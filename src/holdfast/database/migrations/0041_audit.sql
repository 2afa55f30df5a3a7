-- What operators have done, also to what has no history of its own: queues, schedules, limits, tokens, …

-- id: a UUID of version 7, so that entries are in order of time. outcome: null until the action has ended. detail: JSON.
create table {schema}audit (
    id text primary key,
    at bigint not null,
    actor text not null,
    action text not null,
    subject text,
    via text not null,
    client text,
    outcome text check (outcome in ('done', 'unchanged', 'refused', 'failed')),
    detail text not null
) {clustered};

-- For the deletion of old entries.
create index holdfast_audit_at on {schema}audit (at);
