-- Graphs: runs whose nodes are runs, and the edges between nodes.
-- oldest code: 3

-- kind: null for runs of tasks, else graph or gate.
-- node: the name of a run as a node of its parent graph.
-- pending: for a graph, the number of its nodes that aren't final; for a blocked node, the number of its dependencies that aren't.
-- plan: what decides a node: its rule, the references in its arguments, the nodes of a graph. Null if it runs once all its
-- dependencies are done. Until then `cause` says why it will be skipped, if it will.
alter table {schema}runs add column kind text check (kind in ('graph', 'gate'));
alter table {schema}runs add column node text;
alter table {schema}runs add column pending int;
alter table {schema}runs add column plan text;

create unique index holdfast_runs_nodes on {schema}runs (parent, node) where node is not null;

-- Edges: which nodes must be final before a node can be decided.
create table {schema}edges (
    needs {uuid} not null,
    node {uuid} not null,
    primary key (needs, node)
) {clustered};

-- Runs as users see them, all columns in the order in which the code reads them. A graph is running while one of its nodes is; a
-- topmost graph, while any descendant is. (A subquery with a limit keeps its plan; `exists` may become a scan of all runs.)
create view {schema}shown_runs as
select r.id, l.queue, l.task,
    case
        when r.ending is not null and r.finished_at is null then 'undoing'
        when r.kind = 'graph' and r.state = 'waiting' and (
            select 1 from {schema}runs n where n.parent = r.id and n.node is not null and n.state in ('ready', 'scheduled', 'running') limit 1
        ) = 1 then 'running'
        when r.kind = 'graph' and r.state = 'waiting' and r.parent is null and (
            select 1 from {schema}runs n where n.root = r.id and n.state in ('ready', 'scheduled', 'running') limit 1
        ) = 1 then 'running'
        else r.state
    end as state,
    r.priority, r.attempt, r.crashes, r.error, r.result, r.created_at, r.started_at, r.finished_at, r.session, r.tenant, r.tags, r.due_at,
    r.claimed_at, r.held, r.parent, r.progress, case when r.ending is not null and r.state = 'running' then 1 else 0 end as undoing,
    r.kind, r.node, r.spawn_key, r.place, r.options, r.seq
from {schema}runs r join {schema}lanes l on l.id = r.lane;
