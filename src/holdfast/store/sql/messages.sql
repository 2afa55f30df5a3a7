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
update {schema}messages set taken_by = each.key
from {each(:rows, run uuid, n int, key text)}
where {schema}messages.run {joined(:rows, run uuid)} and {schema}messages.run = each.run and {schema}messages.n = each.n

-- name: first_receiver
-- The first open wait for a message of a topic; of those registered together the lower number at the end of the key.
select generation, key from {schema}waits
where run = cast(:run as {uuid}) and kind = 'message' and target = :topic and outcome is null
order by since, length(key), key limit 1

-- name: return_messages
-- Messages that waits of these runs got, and that no code has seen, are as good as new. (A key may have taken others before a restart.)
update {schema}messages set taken_by = null
where run {among(:rows, id uuid)} and (run, n) in (
    select m.run, max(m.n) from {schema}waits w join {schema}messages m on m.run = w.run and m.taken_by = w.key
    where w.run {among(:rows, id uuid)} and m.run {among(:rows, id uuid)} and w.kind = 'message' and w.outcome = 'message'
    group by m.run, m.taken_by
)
