-- name: read_run
-- Read one run, without its result.
select {listed_run(r)}, {listed_args(r)} from {schema}shown_runs r
where r.id = cast(:id as {uuid})

-- name: read_run_with_result
-- Read one run.
select r.*, {listed_args(r)} from {schema}shown_runs r
where r.id = cast(:id as {uuid})

-- name: read_run_without_lane
-- Read a run whose lane doesn't exist, so that `shown_runs` lacks it: the lane was collected, or another program changed
-- the tables. The last column says whether its name is known.
select r.id, coalesce(t.queue, '(unknown)'), coalesce(t.task, '(unknown)'), r.state, r.priority, r.attempt, r.crashes, r.error, cast(null as text), r.created_at, r.started_at,
    r.finished_at, r.session, r.tenant, r.tags, r.due_at, r.claimed_at, r.held, r.parent, r.progress, 0, r.kind, r.node, r.spawn_key,
    r.place, r.options, r.seq, {listed_args(r)}, case when t.id is null then 0 else 1 end
from {schema}runs r left join {schema}retired_lanes t on t.id = r.lane
where r.id = cast(:id as {uuid}) and not exists (select 1 from {schema}lanes l where l.id = r.lane)

-- name: read_run_details
-- Read what operators see of a run in addition. Arguments and result only if they aren't larger than `bytes`.
select case when octet_length(args) <= cast(:bytes as bigint) then args end, octet_length(args),
    case when octet_length(result) <= cast(:bytes as bigint) then result end, octet_length(result),
    options, unique_name, deadline, expires_at, case when finished_at is null then ending end, generation, parked_on,
    case when finished_at is not null then ending end, debounce, start_by, paused_at, limits
from {schema}runs where id = cast(:id as {uuid})

-- name: list_history
-- List the history rows of a run.
select n, at, kind, attempt, session, since, data from {schema}history where run = cast(:id as {uuid}) order by n

-- name: list_history_outline
-- List the last history rows of a run without their data, the last first.
select n, at, kind, attempt, session, since, octet_length(data) from {schema}history
where run = cast(:id as {uuid}) order by n desc limit {limit}

-- name: read_history_data
-- Read the data of history rows of a run.
select h.n, h.data from {each(:rows, n int)} join {schema}history h on h.run = cast(:id as {uuid}) and h.n = each.n

-- name: list_failed_tries
-- List the last history rows of a run about failed tries of steps, the last first.
select n, at, kind, attempt, session, since, data from {schema}history
where run = cast(:id as {uuid}) and kind = 'step_retrying' and at >= cast(:since as bigint)
order by n desc limit {limit}

-- name: list_step_keys
-- List the keys that a run has recorded since a time, in its current generation.
select c.key from {schema}runs r join {schema}checkpoints c on c.run = r.id and c.generation = r.generation
where r.id = cast(:id as {uuid}) and c.at >= cast(:since as bigint)

-- name: list_steps
-- List the checkpoints of a run since its last restart.
select c.n, c.key, c.kind, c.value, c.undo, c.took, c.at, c.generation
from {schema}runs r join {schema}checkpoints c on c.run = r.id and c.generation = r.generation
where r.id = cast(:id as {uuid}) order by c.n

-- name: list_step_outline
-- List the last checkpoints of a run since its last restart, the last first, including superseded ones, which have a
-- negative generation. Values only of compensations that ran: numbers of steps.
select c.n, c.key, c.kind, case when c.kind = 'undone' and octet_length(c.value) <= 20 then c.value end, c.undo, c.took, c.at, c.generation,
    octet_length(c.value)
from {schema}runs r join {schema}checkpoints c on c.run = r.id and (c.generation = r.generation or c.generation < 0)
where r.id = cast(:id as {uuid}) order by c.n desc, c.generation desc limit {limit}

-- name: read_step_values
-- Read the values of checkpoints of a run.
select c.n, c.generation, c.value
from {each(:rows, n int, generation int)}
join {schema}checkpoints c on c.run = cast(:id as {uuid}) and c.generation = each.generation and c.n = each.n

-- name: list_waits
-- List the waits of an unfinished run. One that failed or was cancelled keeps its waits for a retry, but doesn't wait.
select w.key, w.kind, w.target, w.pending, w.due_at, w.since, w.outcome
from {schema}runs r join {schema}waits w on w.run = r.id and w.generation = r.generation
where r.id = cast(:id as {uuid}) and r.finished_at is null and r.ending is null order by w.since, w.key

-- name: list_children
-- List the first children of a run in order of creation, with the call that created them.
select {listed_run(r)}, {listed_args(r)} from {schema}shown_runs r
where r.parent = cast(:id as {uuid}) order by r.seq limit cast(:size as bigint)

-- name: list_unfinished_children
-- List the first unfinished children of one call; those that a map holds back come last.
select r.id, r.task, r.state, r.tenant from {schema}shown_runs r
where r.parent = cast(:id as {uuid}) and r.spawn_key = :spawn_key and r.finished_at is null
order by case when r.state = 'blocked' then 1 else 0 end, r.seq limit cast(:size as bigint)

-- name: list_failed_children
-- List children of a run that failed or were cancelled, with the calls that created them.
select id, spawn_key from {schema}runs
where parent = cast(:id as {uuid}) and spawn_key is not null and state in ('failed', 'cancelled')
order by seq limit 1000

-- name: read_stream_ends
-- Read the states of runs, the numbers of the last chunks that they wrote, and a number that grows when they set values.
select r.id, r.state, (select max(c.n) from {schema}chunks c where c.run = r.id),
    (select cast(sum(v.version) as bigint) from {schema}run_values v where v.run = r.id)
from {schema}runs r where r.id {among(:rows, id uuid)}

-- name: list_chunks
-- List a page of the chunks that a run wrote for its followers, and which earlier chunks no longer count from each on.
--
-- `resets` is 'run' if the run started over before the chunk: nothing before it counts. It is 'step' if the chunk is the
-- first of a repeated call of its step, or of the body after that was rewound: earlier chunks of the same step, or of the
-- body, don't count up from `kept`. Chunks of earlier generations do: the function has continued with `ctx.restart`.
-- A page has at least one chunk, and no second one that starts beyond its first :bytes bytes.
select p.n, p.attempt, p.data, p.step, p.step_try, p.resets,
    case when p.resets = 'step' then coalesce((
        select max(k.n) from {schema}chunks k
        where k.run = cast(:id as {uuid}) and coalesce(k.step, '') = coalesce(p.step, '') and k.n < p.n
        and (k.generation <> p.generation or (p.step is null and k.serial < p.serial))
    ), 0) else 0 end
from (
    select c.n, c.attempt, c.data, c.step, c.step_try, c.generation, c.serial,
        case
            when (
                select b.started_over from {schema}chunks b where b.run = c.run and b.n < c.n order by b.n desc limit 1
            ) = 1 then 'run'
            when (
                select case
                    when b.generation <> c.generation then 0
                    when c.step is null then case when b.serial >= c.serial then 1 else 0 end
                    when coalesce(b.fence, -b.attempt) <> coalesce(c.fence, -c.attempt) then 1
                    when coalesce(b.step_try, 1) <> coalesce(c.step_try, 1) then 1
                    else 0 end
                from {schema}chunks b
                where b.run = c.run and coalesce(b.step, '') = coalesce(c.step, '') and b.n < c.n
                order by b.n desc limit 1
            ) = 1 then 'step'
        end as resets
    from (
        select x.*, sum(octet_length(x.data)) over (order by x.n) - octet_length(x.data) as bytes_before
        from (
            select * from {schema}chunks where run = cast(:id as {uuid}) and n > cast(:after as int) order by n limit 500
        ) x
    ) c
    where c.bytes_before < cast(:bytes as bigint)
) p
order by p.n

-- name: find_runs_in_id_range
-- Find the first runs whose ids are between two, for prefixes that a user typed.
select r.id, r.task, r.state from {schema}shown_runs r
where r.id between cast(:low as {uuid}) and cast(:high as {uuid})
order by r.id limit cast(:size as bigint)

-- name: find_roots_in_id_range
-- Find the first two such runs without a parent.
select id from {schema}runs where id between cast(:low as {uuid}) and cast(:high as {uuid}) and parent is null
order by id limit 2

-- name: read_change_marker
-- Read values that change with everything that happens to a run, to tell whether two reads differ.
select r.state, r.attempt, r.fence, r.generation, r.records, r.progress,
    (select max(c.n) from {schema}checkpoints c where c.run = r.id and c.generation = r.generation),
    (select l.last_line from {schema}logs l where l.run = r.id order by l.run desc, l.fence desc, l.n desc limit 1)
from {schema}runs r where r.id = cast(:id as {uuid})

-- name: count_children_by_state
-- Count the children and nodes of a run by state.
select state, count(*) from {schema}runs where parent = cast(:id as {uuid}) group by state order by state

-- name: list_unfinished_runs
-- List a page of unfinished runs that were claimed at least once, and whether they have checkpoints or waits.
--
-- Each state by its own index, so that finished runs cost nothing. A new stored state needs its line, and its index,
-- here.
select r.id, l.task,
    case when exists (select 1 from {schema}checkpoints c where c.run = r.id and c.generation = r.generation)
        or exists (select 1 from {schema}waits w where w.run = r.id and w.generation = r.generation) then 1 else 0 end
from (
    select id, lane, generation from {schema}runs where state = 'ready' and held is null and fence > 0
    union all
    select id, lane, generation from {schema}runs where state = 'ready' and held is not null and fence > 0
    union all
    select id, lane, generation from {schema}runs where state = 'scheduled' and fence > 0
    union all
    select id, lane, generation from {schema}runs where state = 'running' and session is not null and fence > 0
    union all
    select id, lane, generation from {schema}runs where state in ('waiting', 'blocked') and fence > 0
) r
join {schema}lanes l on l.id = r.lane
where (cast(:after as {uuid}) is null or r.id > cast(:after as {uuid}))
and (cast(:task as text) is null or l.task = :task)
order by r.id limit cast(:size as bigint)

-- name: list_tenants
-- Read the first tenants that have a finished run, by name.
--
-- The recursion jumps from tenant to tenant in the index instead of reading every run.
with recursive tenants (tenant, n) as (
    select min(tenant), 1 from {schema}runs where coalesce(finished_at, 0) > 0 and tenant is not null
    union all
    select (
        select min(r.tenant) from {schema}runs r
        where coalesce(r.finished_at, 0) > 0 and r.tenant is not null and r.tenant > tenants.tenant
    ), n + 1 from tenants where tenants.tenant is not null and n < cast(:size as bigint)
)
select tenant from tenants where tenant is not null

-- name: count_unfinished_by_task
-- Count the unfinished runs of each task, whether they were claimed or not. Graphs and gates have no code.
--
-- Each state by its own index, like list_unfinished_runs.
select l.task, cast(sum(s.runs) as bigint)
from (
    select lane, count(*) as runs from {schema}runs where state = 'ready' and held is null group by lane
    union all
    select lane, count(*) from {schema}runs where state = 'ready' and held is not null group by lane
    union all
    select lane, count(*) from {schema}runs where state = 'scheduled' group by lane
    union all
    select lane, count(*) from {schema}runs where state = 'running' and session is not null group by lane
    union all
    select lane, count(*) from {schema}runs where state in ('waiting', 'blocked') group by lane
) s
join {schema}lanes l on l.id = s.lane
where l.queue <> :graphs
group by l.task

-- name: read_unfinished_claims
-- Read unfinished runs as a worker would claim them, to check whether new code replays them.
select l.task, r.state, r.id, r.seq, r.lane, r.priority, r.turn, r.fence, r.attempt, r.failures, cast(null as bigint), r.args, r.options,
    r.generation, r.tenant, r.parent, r.spent, r.undos, r.ending
from {each(:rows, id uuid)} join {schema}runs r on r.id = each.id join {schema}lanes l on l.id = r.lane
where r.id {among(:rows, id uuid)} and r.finished_at is null

-- name: read_run_positions
-- Read how far runs are: state, restarts, recorded steps and waits, and claims.
select id, state, generation, records, fence from {schema}runs where id {among(:rows, id uuid)}

-- name: read_run_states
-- Read the tasks and states of runs.
select s.id, s.task, s.state from {schema}shown_runs s where s.id {among(:rows, id uuid)}
