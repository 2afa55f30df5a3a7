-- Threads of LangGraph: what `HoldfastSaver` stores. They belong to a tenant ('' is none), not to a run.

-- data, metadata: packed. run: the run that created it, or the `run_id` in its metadata. The keys begin with the thread, so that the thread of
-- a pruned run is found by its name.
create table {schema}langgraph_checkpoints (
    thread text not null,
    tenant text not null,
    ns text not null,
    id text not null,
    parent text,
    run text,
    data text not null,
    metadata text not null,
    at bigint not null,
    primary key (thread, tenant, ns, id)
) {clustered};

create index holdfast_langgraph_runs on {schema}langgraph_checkpoints (run) where run is not null;

-- The values of channels, one for each version, which many checkpoints share.
create table {schema}langgraph_values (
    thread text not null,
    tenant text not null,
    ns text not null,
    channel text not null,
    version text not null,
    data text not null,
    primary key (thread, tenant, ns, channel, version)
) {clustered};

-- What tasks of the superstep after a checkpoint have written. n: the position; special channels have negative ones. path: orders the tasks.
create table {schema}langgraph_writes (
    thread text not null,
    tenant text not null,
    ns text not null,
    id text not null,
    task text not null,
    n int not null,
    channel text not null,
    path text not null,
    data text not null,
    primary key (thread, tenant, ns, id, task, n)
) {clustered};
