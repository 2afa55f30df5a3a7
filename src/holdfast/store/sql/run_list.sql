-- name: newest_runs
-- Read the newest runs between two ids.
select id from {schema}runs
where id < cast(:before as {uuid}) and id > cast(:behind as {uuid}) order by id desc limit {limit}

-- part: contains
(octet_length(t.args) <= 8192 and substr(t.args, 1, 1) <> '~'
    and (lower(t.args) like lower(cast(:search as text)) escape '!' or lower(t.args) like lower(cast(:named as text)) escape '!')
    or t.tags is not null and lower(t.tags) like lower(cast(:search as text)) escape '!'
    or t.options is not null and lower(t.options) like lower(cast(:search as text)) escape '!'
    or t.error is not null and lower(t.error) like lower(cast(:search as text)) escape '!')

-- part: matching_runs
r.id {among(:rows, id uuid)}
and (cast(:states as text) is null or r.state in (select each.value from {each_text(:states)}))
and (cast(:task as text) is null or r.task = :task)
and (cast(:queue as text) is null or r.queue = :queue)
and (cast(:tenant as text) is null or r.tenant = :tenant)
and (cast(:tag as text) is null or exists (select 1 from {each_text(r.tags)} where each.value = :tag))
and (cast(:created_from as bigint) is null or r.created_at >= cast(:created_from as bigint))
and (cast(:created_to as bigint) is null or r.created_at < cast(:created_to as bigint))
and (cast(:finished_from as bigint) is null or r.finished_at >= cast(:finished_from as bigint))
and (cast(:finished_to as bigint) is null or r.finished_at < cast(:finished_to as bigint))
and (cast(:error as text) is null or r.error is not null and lower({error_text(r.error)}) like lower(cast(:error as text)) escape '!')
and (cast(:parent as text) is null or cast(r.parent as text) = :parent)
and (cast(:key as text) is null or r.id in (select k.run from {schema}keys k where k.key || '' = :key))
and (cast(:metadata as text) is null or (
    select 1 from {each(:metadata, name text, value text)} where each.value <> coalesce((
        select m.value from {schema}metadata m where m.run = r.id and m.name = each.name limit 1
    ), '') limit 1) is null)
and (cast(:family as text) is null or cast(r.id as text) = :family
    or (select cast(d.root as text) from {schema}runs d where d.id = r.id) = :family)
and (cast(:paused as int) is null or r.finished_at is null
    and (select d.paused_at from {schema}runs d where d.id = r.id) is not null)
and (cast(:lanes as text) is null or (select d.lane from {schema}runs d where d.id = r.id) in (
    select cast(each.value as bigint) from {each_text(:lanes)}))
and (cast(:top_level as int) is null or r.parent is null)
and (cast(:search as text) is null or (select 1 from {schema}runs t where t.id = r.id and {part(contains)}) = 1)

-- name: filter_runs
-- Read those of these runs that match a filter, newest first, by id, which sorts by time of creation.
select {listed_run(r)}, {listed_args(r)} from {schema}shown_runs r
where {part(matching_runs)}
order by r.id desc limit cast(:size as bigint)

-- name: count_matching_runs
-- Count those of these runs that match a filter.
select count(*) from {schema}shown_runs r
where {part(matching_runs)}

-- part: may_match
(cast(:tenant as text) is null or t.tenant = :tenant)
and (cast(:lanes as text) is null or t.lane in (select cast(each.value as bigint) from {each_text(:lanes)}))
and (cast(:stored_states as text) is null or t.state in (select each.value from {each_text(:stored_states)}))
and (cast(:tag_text as text) is null or t.tags is not null and (t.tags like cast(:tag_text as text) escape '!' or t.tags like '%\%' escape '!'))
and (cast(:error as text) is null or t.error is not null)
and (cast(:top_level as int) is null or t.parent is null)
and (cast(:finished_from as bigint) is null or t.finished_at >= cast(:finished_from as bigint))
and (cast(:finished_to as bigint) is null or t.finished_at < cast(:finished_to as bigint))

-- name: scan_runs
-- Scan the newest runs between two ids: how many there are, how many that may match have arguments that can't be
-- searched, the lowest id, and the ids of those that may match a filter, as a JSON array.
--
-- The limit is inside, so that the number of rows that are read is bounded, however few match. Stored states and tags
-- aren't those that are shown, so the runs are filtered afterwards.
select count(*), coalesce(sum(s.hidden), 0), min(cast(s.id as text)), {id_list(s.id, s.matches = 1)} from (
    select t.id,
        case when (octet_length(t.args) > 8192 or substr(t.args, 1, 1) = '~') and {part(may_match)} then 1 else 0 end as hidden,
        case when (cast(:search as text) is null or {part(contains)}) and {part(may_match)} then 1 else 0 end as matches
    from {schema}runs t
    where t.id < cast(:before as {uuid}) and t.id > cast(:behind as {uuid}) order by t.id desc limit {limit}
) s

-- name: count_hidden_args
-- Count those of these runs whose arguments can't be searched.
select count(*) from {schema}runs r
where r.id {among(:rows, id uuid)} and (octet_length(r.args) > 8192 or substr(r.args, 1, 1) = '~')

-- name: scan_unsuccessful
-- Scan the newest runs that ended in one unsuccessful state: how many there are, the lowest id, and the ids of those of
-- these lanes and this tenant, as a JSON array. The index has all that it reads.
--
-- Rows are compared as a whole, here and below, so that no planner can use the primary key instead of the index.
select count(*), min(cast(s.id as text)), {id_list(s.id, s.matches = 1)} from (
    select t.id, case when (cast(:tenant as text) is null or t.tenant = :tenant)
        and (cast(:lanes as text) is null or t.lane in (select cast(each.value as bigint) from {each_text(:lanes)})) then 1 else 0 end as matches
    from {schema}runs t
    where coalesce(t.finished_at, 0) > 0 and t.state <> 'done'
    and (t.state, t.id) < (cast(:state as text), cast(:before as {uuid})) and (t.state, t.id) > (cast(:state as text), cast(:behind as {uuid}))
    order by t.state desc, t.id desc limit {limit}
) s

-- name: newest_of_lane
-- Read the newest ended runs of a lane.
select id from {schema}runs
where coalesce(finished_at, 0) > 0
and (lane, id) < (cast(:lane as bigint), cast(:before as {uuid})) and (lane, id) > (cast(:lane as bigint), cast(:behind as {uuid}))
order by lane desc, id desc limit {limit}

-- name: newest_of_tenant
-- Read the newest ended runs of a tenant.
select id from {schema}runs
where coalesce(finished_at, 0) > 0 and tenant is not null
and (tenant, id) < (cast(:tenant as text), cast(:before as {uuid})) and (tenant, id) > (cast(:tenant as text), cast(:behind as {uuid}))
order by tenant desc, id desc limit {limit}

-- name: newest_with_metadata
-- Read the newest runs with a metadata value, or with one that starts like it. `term`: the name, a space, and its start.
select run from {schema}metadata
where cast(name || ' ' || substr(value, 1, 100) as text) = cast(:term as text)
and cast(coalesce(run, run) as {uuid}) < cast(:before as {uuid}) and cast(coalesce(run, run) as {uuid}) > cast(:behind as {uuid})
order by cast(coalesce(run, run) as {uuid}) desc limit {limit}

-- name: newest_with_tags
-- Read the newest runs whose list of tags is this one, or starts like it.
select id from {schema}runs
where tags is not null and cast(substr(tags, 1, 200) as text) = cast(:tags as text)
and cast(coalesce(id, id) as {uuid}) < cast(:before as {uuid}) and cast(coalesce(id, id) as {uuid}) > cast(:behind as {uuid})
order by cast(coalesce(id, id) as {uuid}) desc limit {limit}

-- name: tag_lists
-- Read the different lists of tags, or their starts: one look into the index for each.
with recursive lists (tags) as (
    select (
        select cast(substr(r.tags, 1, 200) as text) from {schema}runs r
        where r.tags is not null and cast(substr(r.tags, 1, 200) as text) > ''
        order by cast(substr(r.tags, 1, 200) as text) limit 1
    )
    union all
    select (
        select cast(substr(r.tags, 1, 200) as text) from {schema}runs r
        where r.tags is not null and cast(substr(r.tags, 1, 200) as text) > l.tags
        order by cast(substr(r.tags, 1, 200) as text) limit 1
    ) from lists l where l.tags is not null
)
select l.tags from lists l where l.tags is not null limit {limit}

-- name: some_with_metadata_value
-- Read the newest runs with a metadata value, whatever its name, or with one that starts like it.
select run, value from {schema}metadata
where cast(substr(value, 1, 100) as text) = cast(:value as text)
order by cast(coalesce(run, run, run) as {uuid}) desc limit {limit}

-- name: oldest_runs
-- Read the oldest runs between two ids.
select id from {schema}runs
where id > cast(:behind as {uuid}) and id < cast(:before as {uuid}) order by id limit {limit}

-- name: newest_finished
-- Read the runs that finished last before a position: a time and an id.
select id, finished_at from {schema}runs
where finished_at > 0 and finished_at >= coalesce(cast(:finished_from as bigint), 0)
and (finished_at, id) < (cast(:at as bigint), cast(:id as {uuid})) order by finished_at desc, id desc limit {limit}

-- name: oldest_finished
-- Read the runs that finished first after a position.
select id, finished_at from {schema}runs
where finished_at > 0 and finished_at >= coalesce(cast(:finished_from as bigint), 0)
and (finished_at, id) > (cast(:at as bigint), cast(:id as {uuid})) order by finished_at, id limit {limit}

-- name: last_due
-- Read the scheduled runs that are due last, before a position.
select id, due_at from {schema}runs
where state = 'scheduled' and (due_at, id) < (cast(:at as bigint), cast(:id as {uuid}))
order by due_at desc, id desc limit {limit}

-- name: next_due
-- Read the scheduled runs that are due first, after a position.
select id, due_at from {schema}runs
where state = 'scheduled' and (due_at, id) > (cast(:at as bigint), cast(:id as {uuid}))
order by due_at, id limit {limit}

-- name: some_ready
-- Read ready runs, in no particular order.
select id from {schema}runs where state = 'ready' and held is null order by lane, priority desc limit {limit}

-- name: some_ready_of_lane
-- Read ready runs of a lane, in no particular order.
select id from {schema}runs where lane = cast(:lane as bigint) and state = 'ready' and held is null
order by lane, priority desc limit {limit}

-- name: some_held
-- Read held runs, in no particular order.
select id from {schema}runs where held is not null order by held limit {limit}

-- name: some_scheduled
-- Read scheduled runs, in no particular order.
select id from {schema}runs where state = 'scheduled' order by due_at limit {limit}

-- name: some_running
-- Read runs that a session owns, in no particular order.
select id from {schema}runs where session is not null order by session limit {limit}

-- name: some_suspended
-- Read waiting and blocked runs, in no particular order, including graphs, which may be shown as running.
select id from {schema}runs where state in ('waiting', 'blocked') order by lane limit {limit}

-- name: some_waiting_graphs
-- Read graphs and gates that wait, in no particular order: graphs may be shown as running. By the lanes of graphs, because
-- these are few among all runs that wait.
select id from {schema}runs
where lane {among(:graph_lanes, lane bigint)} and state in ('waiting', 'blocked') and state = 'waiting' order by lane limit {limit}

-- name: some_suspended_of_lane
-- Read waiting and blocked runs of a lane, in no particular order.
select id from {schema}runs where lane = cast(:lane as bigint) and state in ('waiting', 'blocked') order by lane limit {limit}

-- name: some_finished
-- Read runs that ended within a time, in no particular order.
select id from {schema}runs
where finished_at > 0 and finished_at >= coalesce(cast(:finished_from as bigint), 0)
and finished_at < coalesce(cast(:finished_to as bigint), 9000000000000000000) order by finished_at limit {limit}

-- name: some_with_key
-- Read runs that were created with an idempotency key: one per tenant and task that used it.
select run from {schema}keys where key || '' = :key limit {limit}

-- name: some_paused
-- Read paused runs, in no particular order.
select id from {schema}runs where paused_at is not null and paused_at > 0 order by paused_at limit {limit}

-- name: some_children
-- Read children of a run, in no particular order.
select id from {schema}runs where parent = cast(:parent as {uuid}) limit {limit}

-- name: some_of_tree
-- Read a root and the runs below it, in no particular order.
select id from (
    select id from {schema}runs where root = cast(:family as {uuid})
    union all
    select id from {schema}runs where id = cast(:family as {uuid})
) family limit {limit}
