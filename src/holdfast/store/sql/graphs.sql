-- name: add_nodes
-- Graphs and their nodes. Those that are there already (a repeat) are left out. A delay or a lifetime begins when a node is released.
insert into {schema}runs (id, lane, tenant, priority, state, due_at, deadline, lifetime, max_crashes, args, options, tags, keep, created_at,
    root, parent, spawn_key, kind, node, pending, plan, cause, limits, turn)
select cast(each.id as {uuid}), each.lane, each.tenant, each.priority,
    case when each.state = 'ready' and coalesce(each.run_at, {now} + each.delay) > {now} then 'scheduled' else each.state end,
    coalesce(each.run_at, case when each.state <> 'blocked' then {now} + each.delay end),
    coalesce(each.deadline_at, case when each.state <> 'blocked' then {now} + each.deadline_in end),
    coalesce(each.deadline_at - {now}, each.deadline_in),
    each.max_crashes, each.args, each.options, each.tags, each.keep, {now},
    cast(each.root as {uuid}), cast(each.parent as {uuid}), each.spawn_key, each.kind, each.node, each.pending, each.plan, each.cause, each.limits, coalesce(each.turn, 0)
from {each(:rows, id uuid, lane bigint, tenant text, priority int, state text, run_at bigint, delay bigint, deadline_at bigint, deadline_in bigint, max_crashes int, args text, options text, tags text, keep bigint, root uuid, parent uuid, spawn_key text, kind text, node text, pending int, plan text, cause text, limits text, turn bigint)}
where true
on conflict do nothing
returning id, {hint}

-- name: add_edges
-- Which nodes can't be decided before which.
insert into {schema}edges (needs, node)
select cast(each.needs as {uuid}), cast(each.node as {uuid}) from {each(:rows, needs uuid, node uuid)}
where true
on conflict do nothing

-- name: count_nodes
-- So many nodes of these graphs have become final. Graphs that have ended are left out.
update {schema}runs set pending = pending - each.ended
from {each(:rows, id uuid, ended int)}
where {schema}runs.id {joined(:rows, id uuid)} and {schema}runs.id = each.id and coalesce({schema}runs.state, '') = 'waiting'
and {schema}runs.kind = 'graph'
returning {schema}runs.id, pending

-- name: count_down
-- Nodes have become final: those behind them wait for so many fewer, and know why they will be skipped if only one of them spoils it. What is
-- needed to decide a node is read only with the last.
with fewer as materialized (
    select e.node, count(*) as ended, min(each.cause) as cause
    from {each(:rows, id uuid, cause text)} cross join {schema}edges e
    where e.needs = each.id and e.needs {among(:rows, id uuid)}
    group by e.node
)
update {schema}runs set pending = pending - fewer.ended, cause = coalesce({schema}runs.cause, fewer.cause)
from fewer
where {schema}runs.id {among(fewer, node)} and {schema}runs.id = fewer.node and coalesce({schema}runs.state, '') = 'blocked'
returning {schema}runs.id, parent, {schema}runs.node, kind, pending, {schema}runs.cause, case when pending = 0 then plan end

-- name: decidable_nodes
-- The blocked nodes of a graph that wait for nothing.
select id, parent, node, kind, pending, cause, plan from {schema}runs
where parent = cast(:graph as {uuid}) and node is not null and state = 'blocked' and pending = 0
order by seq

-- name: node_ends
-- How nodes of graphs ended; with their results where they are wanted.
select r.parent, r.node, r.id, r.state, r.kind, r.error, r.options, case when each.wanted = 1 then r.result end
from {each(:rows, graph uuid, node text, wanted int)} cross join {schema}runs r
where r.parent = each.graph and r.node = each.node and r.parent {among(:rows, graph uuid)} and r.node is not null

-- name: graph_outputs
-- The results of the nodes of a graph that are done, in the order in which they were added; or of one of them.
select node, id, kind, options, result from {schema}runs
where parent = cast(:graph as {uuid}) and node is not null and state = 'done'
and (cast(:node as text) is null or node = cast(:node as text))
order by seq

-- name: release_nodes
-- Nodes that are to run become ready, or wait: gates for somebody, graphs for their own nodes.
update {schema}runs
set state = case
        when each.state = 'ready' and coalesce(due_at, {now} + each.delay) > {now} then 'scheduled'
        else each.state end,
    due_at = coalesce(due_at, {now} + each.delay),
    deadline = coalesce(deadline, {now} + lifetime),
    args = coalesce(each.args, {schema}runs.args),
    pending = each.pending, cause = null
from {each(:rows, id uuid, state text, delay bigint, args text, pending int)}
where {schema}runs.id {joined(:rows, id uuid)} and {schema}runs.id = each.id
returning {schema}runs.id, {hint}

-- name: finish_runs
-- Locked runs that no worker is at end: graphs, gates, and nodes that can't run.
update {schema}runs
set state = each.state, result = each.result, error = each.error, cause = null, due_at = null, records = records + 1,
    plan = coalesce(each.plan, {schema}runs.plan),
    finished_at = {now}, expires_at = case when parent is null then {now} + keep end
from {each(:rows, id uuid, state text, result text, error text, plan text)}
where {schema}runs.id {joined(:rows, id uuid)} and {schema}runs.id = each.id and finished_at is null
returning {schema}runs.id, records, {hint}

-- name: bad_nodes
-- How many nodes of a graph failed or were cancelled, and the first of them.
select count(*), (
    select b.node from {schema}runs b where b.parent = cast(:graph as {uuid}) and b.node is not null and b.state in ('failed', 'cancelled')
    order by b.finished_at, b.seq limit 1
)
from {schema}runs where parent = cast(:graph as {uuid}) and node is not null and state in ('failed', 'cancelled')

-- name: named_nodes
-- Nodes of a graph by their names, and whether they are unfinished.
select node, id, state, kind, plan, case when finished_at is null then 1 else 0 end from {schema}runs
where parent = cast(:graph as {uuid}) and node {among(:rows, node text)} and node is not null

-- name: keep_plan
-- What is known of a gate before it opens.
update {schema}runs set plan = cast(:plan as text), records = records + 1 where id = cast(:id as {uuid})
returning records

-- name: grow_graph
-- So many nodes more.
update {schema}runs set pending = pending + cast(:count as int), records = records + 1 where id = cast(:id as {uuid})
returning records, pending

-- name: nodes_to_retry
-- The nodes of a graph that failed, were cancelled or skipped, locked.
select id from {schema}runs
where parent = cast(:graph as {uuid}) and node is not null and state in ('failed', 'cancelled', 'skipped')
order by seq {lock}

-- name: block_nodes
-- Nodes that are to be tried again wait for their turn; those that go on undoing don't.
update {schema}runs set state = 'blocked', pending = 0, error = null, cause = null, deadline = null
where id {among(:rows, id uuid)} and ending is null

-- name: recount_nodes
-- How many unfinished nodes the blocked ones of a graph wait for.
with left_over as materialized (
    select e.node, count(*) as pending
    from {schema}runs n cross join {schema}edges e
    where n.parent = cast(:graph as {uuid}) and n.node is not null and n.finished_at is null and e.needs = n.id
    group by e.node
)
update {schema}runs set pending = left_over.pending
from left_over
where {schema}runs.id {among(left_over, node)} and {schema}runs.id = left_over.node and coalesce({schema}runs.state, '') = 'blocked'

-- name: reopen_graph
-- A graph that is to be tried again waits for its unfinished nodes.
update {schema}runs
set state = 'waiting', pending = (
    select count(*) from {schema}runs n where n.parent = cast(:graph as {uuid}) and n.node is not null and n.finished_at is null
)
where id = cast(:graph as {uuid})
returning pending

-- name: prune_edges
-- What depended on pruned nodes.
delete from {schema}edges where needs {among(:rows, id uuid)}

-- name: graph_place
-- Whose child or node a graph is.
select parent, spawn_key, place, node from {schema}runs where id = cast(:id as {uuid})

-- name: has_nodes
-- Whether the nodes of a graph have been made.
select 1 from {schema}runs where parent = cast(:graph as {uuid}) and node is not null limit 1

-- name: overdue_gates
-- Those of these gates that are open and past their time.
select id, parent, node, lifetime, plan from {schema}runs
where id {among(:rows, id uuid)} and kind = 'gate' and finished_at is null and coalesce(deadline, {now} + 1) <= {now}
order by seq

-- name: gate_state
-- How a gate is.
select state, result, error, plan from {schema}runs where id = cast(:id as {uuid})

-- name: graph_nodes
-- The nodes of a graph, in the order in which they were added, by pages.
select * from {schema}shown_runs where parent = cast(:graph as {uuid}) and node is not null and seq > cast(:after as bigint)
order by seq limit 1000

-- name: graph_edges
-- Which nodes of a graph need which.
select e.needs, e.node from {schema}runs n cross join {schema}edges e
where n.parent = cast(:graph as {uuid}) and n.node is not null and e.needs = n.id
