-- Graphs: runs whose nodes are runs, and which node needs which.
-- oldest code: 3

-- kind: null for runs of tasks, else graph or gate.
-- node: the name of a run as a node of its parent, a graph.
-- pending: of a graph, how many of its nodes aren't final; of a blocked node, of how many it depends on that is so.
-- plan: what the release of a node needs to know: its rule, what is to be filled into its arguments, the nodes of a graph. Null where it
-- runs when all that it needs has ended well. Meanwhile `cause` says why it will be skipped, if it will.
alter table {schema}runs add column kind text check (kind in ('graph', 'gate'));
alter table {schema}runs add column node text;
alter table {schema}runs add column pending int;
alter table {schema}runs add column plan text;

create unique index holdfast_runs_nodes on {schema}runs (parent, node) where node is not null;

-- Which nodes can't be decided before which.
create table {schema}edges (
    needs {uuid} not null,
    node {uuid} not null,
    primary key (needs, node)
) {clustered};

-- Runs as people see them, all columns in the order in which code reads them. A graph is running while anything below it is.
-- (Subqueries with a limit stay what they are; exists may become a walk over all runs.)
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
