-- name: read_value_sizes
-- Read the names of the values of locked runs, and the stored sizes.
select v.run, v.name, octet_length(v.value) from {schema}run_values v where v.run {among(:rows, id uuid)}

-- name: set_values
-- Set values of locked runs. The version tells followers that a value has changed.
insert into {schema}run_values (run, name, value, version, at)
select cast(each.run as {uuid}), each.name, each.value, 1, {stamp} from {each(:rows, run uuid, name text, value text)}
where true
on conflict (run, name) do update set value = excluded.value, version = {schema}run_values.version + 1, at = excluded.at
returning {notify_followers}

-- name: read_values
-- Read the state and the tenant of a run, and its values; of one name only, if it is given.
select case when r.ending is not null and r.finished_at is null then 'undoing' else r.state end, r.tenant, v.name, v.value, v.version, v.at
from {schema}runs r
left join {schema}run_values v on v.run = r.id and (cast(:name as text) is null or v.name = :name)
where r.id = cast(:run as {uuid})
order by v.name

-- name: read_value_versions
-- Read the states of runs and the versions of their values.
select r.id, r.state, v.name, v.version
from {schema}runs r left join {schema}run_values v on v.run = r.id
where r.id {among(:rows, id uuid)}

-- name: delete_values
-- Delete the values of pruned runs.
delete from {schema}run_values where run {among(:rows, id uuid)}

-- name: find_ask
-- Find the ask of a run with a key.
select topic, payload, sent_by from {schema}messages where run = cast(:run as {uuid}) and ask = :ask

-- name: first_unread_ask
-- Read the first ask, whatever its name, that no receive has taken.
select n, payload from {schema}messages {indexed_by(holdfast_messages_new_asks)}
where run = cast(:run as {uuid}) and ask is not null and taken_by is null
order by n limit 1

-- name: answer_asks
-- Answer asks of locked runs. The first answer counts; `sent_by` tells an ask from one of a fork with the same key.
update {schema}messages set answer = each.answer, reply = each.reply, answered_at = {now}
from {each(:rows, run uuid, ask text, sent_by text, answer text, reply text)}
{lookup(messages m, m.run = each.run and m.ask = each.ask)}
where {is_row(messages m, run n)} and {schema}messages.sent_by = each.sent_by and {schema}messages.answered_at is null
returning {schema}messages.run, {schema}messages.sent_by, {schema}messages.n, {notify_followers}

-- name: read_answers
-- Read whether and how asks were answered, and the states and tenants of their runs.
select m.run, m.ask, m.answer, m.reply, m.topic, r.tenant,
    case when r.ending is not null and r.finished_at is null then 'undoing' else r.state end
from {each(:rows, run uuid, ask text)} {lookup(messages m, m.run = each.run and m.ask = each.ask)}
join {schema}runs r on r.id = m.run

-- name: list_pending_asks
-- List the asks of a run that aren't answered, in order of arrival, without their payloads.
select topic, ask, sent_at, case when taken_by is null then 0 else 1 end from {schema}messages
where run = cast(:run as {uuid}) and ask is not null and answered_at is null
order by n limit cast(:size as bigint)

-- name: forget_answers
-- Delete asks that were answered long ago.
delete from {schema}messages where run {among(:rows, id uuid)} and ask is not null and answered_at < {now} - cast(:age as bigint)

-- name: forget_unread_asks
-- Delete asks that retried runs hadn't received when they ended: their askers were told that the run has finished.
delete from {schema}messages
where run {among(:rows, id uuid)} and ask is not null and taken_by is null and answered_at is null

-- name: return_messages_of_restarted
-- Return messages to runs that start over: those that waits have taken but the task hasn't seen, and unanswered asks.
update {schema}messages set taken_by = null
where run {among(:rows, id uuid)} and taken_by is not null and (
    (ask is not null and answered_at is null) or (run, taken_by) in (
        select w.run, cast(w.generation as text) || ':' || w.key from {schema}waits w
        where w.run {among(:rows, id uuid)} and w.kind = 'message' and w.outcome = 'message'
    )
)
