-- name: add_messages
-- Messages to runs, numbered on under the run's lock.
insert into {schema}messages (run, n, topic, payload, sent_at, sent_by)
select cast(each.run as {uuid}), each.number + coalesce((select max(m.n) from {schema}messages m where m.run = each.run), 0),
    each.topic, each.payload, {now}, each.sent_by
from {each(:rows, run uuid, number int, topic text, payload text, sent_by text)}

-- name: sent_by
-- Whether a call has sent its message.
select 1 from {schema}messages where run = cast(:run as {uuid}) and sent_by = :sent_by limit 1

-- name: first_message
-- The first message of a topic that nobody took.
select n, payload from {schema}messages
where run = cast(:run as {uuid}) and topic = :topic and taken_by is null
order by n limit 1

-- name: take_messages
-- Messages that were received.
update {schema}messages set taken_by = each.taken_by
from {each(:rows, run uuid, n int, taken_by text)}
where {schema}messages.run {matching(:rows, run uuid)} and {schema}messages.run = each.run and {schema}messages.n = each.n

-- name: first_receiver
-- The first open wait for a message of a topic; of those registered together the lower number at the end of the key.
select generation, key from {schema}waits
where run = cast(:run as {uuid}) and kind = 'message' and target = :topic and outcome is null
order by since, length(key), key limit 1

-- name: return_messages
-- Messages that waits of these runs got, and that no code has seen, are as good as new.
update {schema}messages set taken_by = null
where run {among(:rows, id uuid)} and (run, taken_by) in (
    select w.run, cast(w.generation as text) || ':' || w.key from {schema}waits w
    where w.run {among(:rows, id uuid)} and w.kind = 'message' and w.outcome = 'message'
)

-- name: give_back
-- Messages that these receivers took and no code has seen are as good as new.
update {schema}messages set taken_by = null
where run {among(:rows, run uuid)} and (run, taken_by) in (
    select cast(each.run as {uuid}), each.taken_by from {each(:rows, run uuid, taken_by text)}
)
returning run, topic
