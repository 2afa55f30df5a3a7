-- name: pause_queues
-- From the commit on no claim begins to take runs of these queues. Answers those that were open.
insert into {schema}queues (name, paused, paused_at)
select each.name, 1, {now} from {each(:rows, name text)}
where true
on conflict (name) do update set paused = 1, paused_at = excluded.paused_at where {schema}queues.paused = 0
returning name

-- name: resume_queues
-- Paused queues are open again, and idle workers hear of it. Answers those that were paused.
update {schema}queues set paused = 0, paused_at = null
where name {among(:rows, name text)} and paused = 1
returning name, {notify_workers}

-- name: list_queues
-- Every queue that a run was ever put into, or that was paused.
select names.name, coalesce(q.paused, 0), q.paused_at
from (select queue as name from {schema}lanes union select name from {schema}queues) names
left join {schema}queues q on q.name = names.name
order by names.name

-- name: count_unfinished
-- How many unfinished runs each queue has by state, and when the oldest was made. Each state by an index of its own, so that finished
-- runs cost nothing; a state that comes to be stored needs its line, and its index, here.
select l.queue, s.state, cast(sum(s.runs) as bigint), min(s.oldest), {now}
from (
    select lane, 'ready' as state, count(*) as runs, min(created_at) as oldest
    from {schema}runs where state = 'ready' and held is null group by lane
    union all
    select lane, 'ready', count(*), min(created_at) from {schema}runs where state = 'ready' and held is not null group by lane
    union all
    select lane, 'scheduled', count(*), min(created_at) from {schema}runs where state = 'scheduled' group by lane
    union all
    select lane, 'running', count(*), min(created_at) from {schema}runs where state = 'running' and session is not null group by lane
    union all
    select lane, state, count(*), min(created_at) from {schema}runs where state in ('waiting', 'blocked') group by lane, state
) s
join {schema}lanes l on l.id = s.lane
group by l.queue, s.state
