-- name: add_nodes
-- Insert graphs and nodes. Those that exist (a repeat) are left out.
--
-- The delay and lifetime of a blocked node start when it is released.
insert into {schema}runs (id, lane, tenant, priority, state, due_at, deadline, lifetime, max_crashes, unique_name, args, options, tags, keep, keep_failed, created_at,
    root, parent, spawn_key, kind, node, pending, plan, cause, limits, turn)
select cast(each.id as {uuid}), each.lane, each.tenant, each.priority,
    case when each.state = 'ready' and coalesce(each.run_at, {stamp} + each.delay) > {stamp} then 'scheduled' else each.state end,
    coalesce(each.run_at, case when each.state <> 'blocked' then {stamp} + each.delay end),
    coalesce(each.deadline_at, case when each.state <> 'blocked' then {stamp} + each.deadline_in end),
    coalesce(each.deadline_at - {stamp}, each.deadline_in),
    each.max_crashes, each.unique_name, each.args, each.options, each.tags, each.keep, each.keep_failed, {stamp},
    cast(each.root as {uuid}), cast(each.parent as {uuid}), each.spawn_key, each.kind, each.node, each.pending, each.plan, each.cause, each.limits, {new_turn(each.turn)}
from {each(:rows, id uuid, lane bigint, tenant text, priority int, state text, run_at bigint, delay bigint, deadline_at bigint, deadline_in bigint, max_crashes int, unique_name text, args text, options text, tags text, keep bigint, keep_failed bigint, root uuid, parent uuid, spawn_key text, kind text, node text, pending int, plan text, cause text, limits text, turn bigint)}
where true
on conflict do nothing
returning id, {notify_workers}

-- name: add_edges
-- Insert which nodes depend on which.
insert into {schema}edges (needs, node)
select cast(each.needs as {uuid}), cast(each.node as {uuid}) from {each(:rows, needs uuid, node uuid)}
where true
on conflict do nothing

-- name: decrement_graphs
-- Count ended nodes in their graphs. Graphs that have ended are left out.
update {schema}runs set pending = pending - each.ended
from {each(:rows, id uuid, ended int)}
where {schema}runs.id {matching(:rows, id uuid)} and {schema}runs.id = each.id and coalesce({schema}runs.state, '') = 'waiting'
and {schema}runs.kind = 'graph'
returning {schema}runs.id, pending

-- name: decrement_nodes
-- only: postgres
-- Count ended nodes at those that depend on them, and keep the cause for which these may be skipped.
--
-- Of several causes the largest text stays, which prefers a failure to a condition. The plan is read only once nothing
-- is pending. Rows are updated by ctid; no other transaction changes them while the graph is locked. As a join, the planner
-- compared every row with every other: 4 s for a fan-out of 2,000 (decision 3; bench: graphs).
with ended as materialized (
    select each.id, each.cause from {each(:rows, id uuid, cause text)}
),
fewer as materialized (
    select e.node, count(*) as ended, max(ended.cause) as cause
    from ended cross join lateral (select x.node from {schema}edges x where x.needs = ended.id offset 0) e
    group by e.node
),
found as materialized (
    select fewer.ended, fewer.cause, r.tid, r.state from fewer cross join lateral (
        select x.ctid as tid, x.state from {schema}runs x where x.id = fewer.node {lock}
    ) r
)
update {schema}runs run set pending = run.pending - found.ended,
    cause = case when run.cause >= found.cause then run.cause else coalesce(found.cause, run.cause) end
from found
where run.ctid = found.tid and found.state = 'blocked'
returning run.id, run.parent, run.node, run.kind, run.pending, run.cause, case when run.pending = 0 then run.plan end, run.tenant

-- name: decrement_nodes
-- only: sqlite
-- Count ended nodes at those that depend on them, as on PostgreSQL, but as a join: SQLite starts from the counted
-- nodes.
with fewer as materialized (
    select e.node, count(*) as ended, max(each.cause) as cause
    from {each(:rows, id uuid, cause text)} cross join {schema}edges e
    where e.needs = each.id
    group by e.node
)
update {schema}runs set pending = pending - fewer.ended,
    cause = case when {schema}runs.cause >= fewer.cause then {schema}runs.cause else coalesce(fewer.cause, {schema}runs.cause) end
from fewer
where {schema}runs.id = fewer.node and coalesce({schema}runs.state, '') = 'blocked'
returning {schema}runs.id, parent, {schema}runs.node, kind, pending, {schema}runs.cause, case when pending = 0 then plan end, tenant

-- name: find_decidable_nodes
-- Find the blocked nodes of a graph that wait for nothing. coalesce keeps the planner from reading all blocked runs.
select id, parent, node, kind, pending, cause, plan, tenant from {schema}runs
where parent = cast(:graph as {uuid}) and node is not null and coalesce(state, '') = 'blocked' and pending = 0
order by seq

-- name: read_node_ends
-- only: postgres
-- Read how nodes of graphs ended, with their results where wanted.
--
-- One by one with a lateral: as a join, the planner reads all nodes of the graph.
select r.parent, r.node, r.id, r.state, r.kind, r.error, r.options, r.tenant, case when each.wanted = 1 then r.result end
from {each(:rows, graph uuid, node text, wanted int)} cross join lateral (
    select x.* from {schema}runs x where x.parent = each.graph and x.node = each.node and x.node is not null offset 0
) r

-- name: read_node_ends
-- only: sqlite
-- Read how nodes of graphs ended, with their results where wanted. SQLite has no laterals and needs none.
select r.parent, r.node, r.id, r.state, r.kind, r.error, r.options, r.tenant, case when each.wanted = 1 then r.result end
from {each(:rows, graph uuid, node text, wanted int)} cross join {schema}runs r
where r.parent = each.graph and r.node = each.node and r.node is not null

-- name: read_graph_outputs
-- Read the results of a graph's finished nodes, in the order in which they were added, or of one of them.
select node, id, kind, options, tenant, result from {schema}runs
where parent = cast(:graph as {uuid}) and node is not null and state = 'done'
and (cast(:node as text) is null or node = cast(:node as text))
order by seq

-- name: list_graph_outputs
-- List the same with the sizes of the results.
select node, id, kind, options, tenant, octet_length(result) from {schema}runs
where parent = cast(:graph as {uuid}) and node is not null and state = 'done'
and (cast(:node as text) is null or node = cast(:node as text))
order by seq limit {limit}

-- name: release_nodes
-- Make nodes ready, or let them wait: gates for a call from outside, graphs for their own nodes.
update {schema}runs
set state = case
        when each.state = 'ready' and coalesce(each.run_at, {stamp} + each.delay) > {stamp} then 'scheduled'
        else each.state end,
    due_at = coalesce(each.run_at, {stamp} + each.delay),
    ready_at = {stamp},
    deadline = coalesce(deadline, {stamp} + lifetime),
    args = coalesce(each.args, {schema}runs.args),
    pending = each.pending, cause = null
from {each(:rows, id uuid, state text, delay bigint, run_at bigint, args text, pending int)}
where {schema}runs.id {matching(:rows, id uuid)} and {schema}runs.id = each.id
returning {schema}runs.id, {notify_workers}

-- name: end_without_attempt
-- End locked runs that no worker is running: graphs, gates, and nodes that can't run.
update {schema}runs
set state = each.state, result = each.result, error = each.error, cause = null, due_at = null, records = records + 1,
    plan = coalesce(each.plan, {schema}runs.plan),
    finished_at = {stamp}, expires_at = case
        when parent is null then {stamp} + case when each.state = 'done' then keep else coalesce(keep_failed, keep) end end
from {each(:rows, id uuid, state text, result text, error text, plan text)}
where {schema}runs.id {matching(:rows, id uuid)} and {schema}runs.id = each.id and finished_at is null
returning {schema}runs.id, records, {notify_workers}, {notify_clients}

-- name: find_failed_nodes
-- Count the nodes of a graph that failed or were cancelled, and find the first of them.
select count(*), (
    select b.node from {schema}runs b where b.parent = cast(:graph as {uuid}) and b.node is not null and b.state in ('failed', 'cancelled')
    order by b.finished_at, b.seq limit 1
)
from {schema}runs where parent = cast(:graph as {uuid}) and node is not null and state in ('failed', 'cancelled')

-- name: find_nodes
-- only: postgres
-- Find nodes of a graph by name, and whether they are unfinished. One by one, as in `read_node_ends`.
select r.node, r.id, r.state, r.kind, r.plan, r.error, case when r.finished_at is null then 1 else 0 end
from {each(:rows, node text)} cross join lateral (
    select x.* from {schema}runs x where x.parent = cast(:graph as {uuid}) and x.node = each.node and x.node is not null offset 0
) r

-- name: find_nodes
-- only: sqlite
-- Find nodes of a graph by name, and whether they are unfinished.
select node, id, state, kind, plan, error, case when finished_at is null then 1 else 0 end from {schema}runs
where parent = cast(:graph as {uuid}) and node {among(:rows, node text)} and node is not null

-- name: store_links
-- Store the plan of a gate with the links to it. They aren't records: a link ends with the next record.
update {schema}runs set plan = cast(:plan as text) where id = cast(:id as {uuid})

-- name: store_plan
-- Store the plan of a gate that was concluded before it opened.
update {schema}runs set plan = cast(:plan as text), records = records + 1 where id = cast(:id as {uuid})
returning records

-- name: grow_graph
-- Add to the number of unfinished nodes of a graph.
update {schema}runs set pending = pending + cast(:count as int), records = records + 1 where id = cast(:id as {uuid})
returning records, pending

-- name: find_nodes_to_retry
-- only: postgres
-- Find the nodes of a graph that failed or were cancelled, and all nodes that depend on them.
--
-- With a lateral, as in `decrement_nodes`: as a join, the planner may read all edges in each round.
with recursive again (id) as (
    select r.id from {schema}runs r
    where r.parent = cast(:graph as {uuid}) and r.node is not null and r.state in ('failed', 'cancelled')
    union
    select e.node from again cross join lateral (select x.node from {schema}edges x where x.needs = again.id offset 0) e
)
select id from again

-- name: find_nodes_to_retry
-- only: sqlite
-- Find the nodes of a graph that failed or were cancelled, and all nodes that depend on them.
with recursive again (id) as (
    select r.id from {schema}runs r
    where r.parent = cast(:graph as {uuid}) and r.node is not null and r.state in ('failed', 'cancelled')
    union
    select e.node from again cross join {schema}edges e where e.needs = again.id
)
select id from again

-- name: find_nodes_of_graphs
-- Find the nodes of graphs.
select id from {schema}runs where parent {among(:rows, id uuid)} and node is not null

-- name: find_unfinished_nodes
-- Find the unfinished nodes of graphs.
select id, parent, node, kind from {schema}runs
where parent {among(:rows, id uuid)} and node is not null and finished_at is null

-- name: restart_nodes
-- Return done nodes to ready, to start over with new budgets in a new generation. As in `retry_runs`, a node is held
-- while its code is still running.
update {schema}runs
set state = 'ready', held = case when session is not null then 'quiescing' end, turn = {next_turn({schema}runs, {now})},
    generation = generation + 1, attempt = 0, failures = 0, crashes = 0, deaths = 0, isolation = null, resumed = 0, spent = 0,
    undos = 0, error = null, result = null, progress = null, records = records + 1,
    started_at = null, finished_at = null, expires_at = null
where id {among(:rows, id uuid)} and state = 'done'
returning id, records, ending, generation, parent, spawn_key, place, kind, {notify_workers}

-- name: block_nodes
-- Block nodes that are retried until they are decided again; those that continue to undo are left alone.
update {schema}runs set state = 'blocked', pending = 0, error = null, cause = null, deadline = null
where id {among(:rows, id uuid)} and ending is null

-- name: recount_nodes
-- only: postgres
-- Count the unfinished nodes that the blocked nodes of a graph wait for. By ctid, as in `decrement_nodes`.
with left_over as materialized (
    select e.node, count(*) as pending
    from {schema}runs n cross join lateral (select x.node from {schema}edges x where x.needs = n.id offset 0) e
    where n.parent = cast(:graph as {uuid}) and n.node is not null and n.finished_at is null
    group by e.node
),
found as materialized (
    select left_over.pending, r.tid, r.state from left_over cross join lateral (
        select x.ctid as tid, x.state from {schema}runs x where x.id = left_over.node {lock}
    ) r
)
update {schema}runs run set pending = found.pending
from found
where run.ctid = found.tid and found.state = 'blocked'

-- name: recount_nodes
-- only: sqlite
-- Count the unfinished nodes that the blocked nodes of a graph wait for. SQLite has no laterals and needs none.
with left_over as materialized (
    select e.node, count(*) as pending
    from {schema}runs n cross join {schema}edges e
    where n.parent = cast(:graph as {uuid}) and n.node is not null and n.finished_at is null and e.needs = n.id
    group by e.node
)
update {schema}runs set pending = left_over.pending
from left_over
where {schema}runs.id = left_over.node and coalesce({schema}runs.state, '') = 'blocked'

-- name: reopen_graph
-- Let a graph that is retried wait for its unfinished nodes.
update {schema}runs
set state = 'waiting', pending = (
    select count(*) from {schema}runs n where n.parent = cast(:graph as {uuid}) and n.node is not null and n.finished_at is null
)
where id = cast(:graph as {uuid})
returning pending

-- name: read_graph_parent
-- Read whose child or node a graph is, and its options.
select parent, spawn_key, place, node, options from {schema}runs where id = cast(:id as {uuid})

-- name: has_nodes
-- Check whether the nodes of a graph were created.
select 1 from {schema}runs where parent = cast(:graph as {uuid}) and node is not null limit 1

-- name: find_overdue_gates
-- Find those of these gates that are unfinished and past their deadline.
select id, parent, node, lifetime, plan, tenant from {schema}runs
where id {among(:rows, id uuid)} and kind = 'gate' and finished_at is null and coalesce(deadline, {now} + 1) <= {now}
order by seq

-- name: read_gate
-- Read the state, outcome and plan of a gate.
select state, result, error, plan, {now} from {schema}runs where id = cast(:id as {uuid})

-- name: read_linked_gate
-- Read a gate for a link: its state, and for a gate of a durable function, the function's generation and end.
select g.id, g.node, g.state, g.records, g.tenant, g.plan, g.deadline, p.spawn_key, f.generation, f.finished_at, {now}
from {schema}runs g join {schema}runs p on p.id = g.parent
left join {schema}runs f on f.id = p.parent and p.node is null
where g.id = cast(:id as {uuid}) and g.kind = 'gate' and g.node is not null

-- name: list_nodes
-- List a page of a graph's nodes by name; `seq` tells in which order they were added.
select r.*, {listed_args(r)} from {schema}shown_runs r
where r.parent = cast(:graph as {uuid}) and r.node is not null and r.node > cast(:after as text)
order by r.node limit 1000

-- name: list_node_overview
-- List a page of a graph's nodes by name, without results and long plans.
select s.seq, s.id, s.node, s.kind, s.task, s.state, s.attempt, s.error, s.created_at, s.started_at, s.finished_at, s.due_at, s.held,
    case when length(r.plan) <= 20000 then r.plan end
from {schema}shown_runs s join {schema}runs r on r.id = s.id
where s.parent = cast(:graph as {uuid}) and s.node is not null and s.node > cast(:after as text)
order by s.node limit 1000

-- name: list_node_names
-- List a page of the names of a graph's nodes; `seq` tells in which order they were added.
select r.seq, r.id, r.node from {schema}runs r
where r.parent = cast(:graph as {uuid}) and r.node is not null and r.node > cast(:after as text)
order by r.node limit 5000

-- name: list_unfinished_node_names
-- List a page of the names of a graph's unfinished nodes.
select r.node from {schema}runs r
where r.parent = cast(:graph as {uuid}) and r.node is not null and r.node > cast(:after as text) and r.finished_at is null
order by r.node limit 5000

-- name: read_node_overview
-- Read nodes of a graph, with the columns of `list_node_overview`.
select s.seq, s.id, s.node, s.kind, s.task, s.state, s.attempt, s.error, s.created_at, s.started_at, s.finished_at, s.due_at, s.held,
    case when length(r.plan) <= 20000 then r.plan end
from {schema}shown_runs s join {schema}runs r on r.id = s.id
where s.id {among(:rows, id uuid)} and r.id {among(:rows, id uuid)}

-- name: count_nodes
-- Count the nodes of a graph by state.
select s.state, count(*) from {schema}shown_runs s where s.parent = cast(:graph as {uuid}) and s.node is not null
group by s.state

-- name: list_node_ids_in_state
-- List some nodes of a graph in one state, in the order in which they were added.
select s.id from {schema}shown_runs s
where s.parent = cast(:graph as {uuid}) and s.node is not null and s.state = :state
order by s.seq + 0 limit cast(:size as bigint) offset cast(:start as bigint)

-- name: count_nested_nodes
-- Count the nodes of graphs nested in a graph, by state.
select n.parent, n.state, count(*)
from {schema}runs g join {schema}shown_runs n on n.parent = g.id
where g.parent = cast(:graph as {uuid}) and g.node is not null and g.kind = 'graph' and n.node is not null
group by n.parent, n.state

-- name: list_dependencies
-- List the nodes that a node depends on.
select n.node, n.state from {schema}shown_runs n join {schema}edges e on e.needs = n.id and e.node = cast(:id as {uuid})
where n.parent = cast(:graph as {uuid}) and n.node is not null
order by n.seq

-- name: list_dependency_outcomes
-- List the first nodes that a node depends on, with their errors, and the sizes of their arguments and results.
select n.id, n.node, n.kind, n.task, n.state, octet_length(r.args), octet_length(r.result), n.error, n.options, r.tenant
from {schema}shown_runs n join {schema}edges e on e.needs = n.id and e.node = cast(:id as {uuid}) join {schema}runs r on r.id = n.id
where n.parent = cast(:graph as {uuid}) and n.node is not null
order by n.seq limit cast(:size as bigint)

-- name: read_arguments
-- Read the arguments of runs.
select id, args from {schema}runs where id {among(:rows, id uuid)}

-- name: read_results
-- Read the results of runs.
select id, result from {schema}runs where id {among(:rows, id uuid)}

-- name: list_dependents
-- List the first nodes that depend on a node.
select n.id, n.node, n.kind, n.task, n.state
from {schema}edges e join {schema}shown_runs n on n.id = e.node
where e.needs = cast(:id as {uuid})
order by n.seq limit cast(:size as bigint)

-- name: list_gates
-- List the gates of a graph and of nested graphs, or of the graphs that a durable function spawned, with the time at which
-- they opened, and the history entry of their last decision.
--
-- SQLite keeps the order of a cross join, and doesn't build an index for an expression: no statistics make it read all
-- runs.
with recursive graphs (id) as (
    select r.id from {schema}runs r where r.id = cast(:graph as {uuid})
    union all
    select n.id from graphs cross join {schema}runs n where n.parent = graphs.id and coalesce(n.kind, '') = 'graph'
)
select g.id, g.parent, g.node, g.state, coalesce(g.ready_at, g.created_at), g.deadline, g.plan, d.kind, d.at, d.data
from graphs cross join {schema}runs g
left join {schema}history d on d.run = g.id and d.n = (
    select max(h.n) from {schema}history h
    where h.run = g.id and h.kind in ('completed', 'failed', 'concluded_early', 'timed_out')
)
where g.parent = graphs.id and g.node is not null and coalesce(g.kind, '') = 'gate'
order by g.seq

-- name: is_function
-- Check whether a run is neither a graph nor part of one.
select 1 from {schema}runs where id = cast(:id as {uuid}) and kind is null and node is null

-- name: find_function_gate
-- Find the gate of this label that a durable function has opened since its last restart: an open one, or the last one.
select g.id, g.state, g.kind, g.plan, g.error, case when g.finished_at is null then 1 else 0 end
from {schema}runs f
join {schema}runs p on p.parent = f.id and p.kind = 'graph' and p.node is null
    and substr(p.spawn_key, 1, length(cast(f.generation as text)) + length(cast(:label as text))) = cast(f.generation as text) || cast(:label as text)
join {schema}runs g on g.parent = p.id and g.node is not null and g.kind = 'gate'
where f.id = cast(:run as {uuid})
order by case when g.finished_at is null then 0 else 1 end, p.seq desc limit 1

-- name: list_edges
-- List the edges of a graph.
with nodes as materialized (
    select id from {schema}runs where parent = cast(:graph as {uuid}) and node is not null
)
select e.needs, e.node from {schema}edges e where e.needs {among(nodes, id)}

-- name: list_open_gates
-- List open gates, the oldest first, with the name of the graph, or of the durable function that spawned it, when they
-- opened, and the start of their payloads. By their lanes, because gates are few among all runs that wait.
select g.id, g.node, g.parent, coalesce(fl.task, l.task), g.tenant, g.created_at, g.deadline, g.plan, coalesce(g.ready_at, g.created_at),
    g.records, case when octet_length(g.args) <= 500 then g.args when octet_length(g.args) <= 100000 then substr(g.args, 1, 300) end,
    octet_length(g.args), {now}
from {schema}lanes gl join {schema}runs g on g.lane = gl.id join {schema}runs p on p.id = g.parent join {schema}lanes l on l.id = p.lane
left join {schema}runs f on f.id = p.parent and p.node is null left join {schema}lanes fl on fl.id = f.lane
where gl.queue = '$graph' and g.state in ('waiting', 'blocked') and g.state = 'waiting' and g.kind = 'gate'
and (cast(:tenant as text) is null or g.tenant = :tenant)
order by g.seq limit cast(:size as bigint)
