-- name: add_logs
-- Add groups of lines that runs have logged, of claims that this transaction has found to be the session's.
--
-- Lines and bytes are counted from the first claim of a run on. Only a later claim has earlier lines to look up.
insert into {schema}logs (run, fence, n, attempt, lines, bytes, last_line, last_byte, at, data)
select cast(each.run as {uuid}), each.fence, each.n, each.attempt, each.lines, each.bytes,
    each.last_line + case when each.fence = 1 then 0 else coalesce((
        select l.last_line from {schema}logs l where l.run = each.run and l.fence < each.fence
        order by l.run desc, l.fence desc, l.n desc limit 1
    ), 0) end,
    each.last_byte + case when each.fence = 1 then 0 else coalesce((
        select l.last_byte from {schema}logs l where l.run = each.run and l.fence < each.fence
        order by l.run desc, l.fence desc, l.n desc limit 1
    ), 0) end,
    {stamp}, each.data
from {each(:rows, run uuid, fence bigint, n int, attempt int, lines int, bytes int, last_line bigint, last_byte bigint, data text)}
where true
on conflict do nothing

-- name: last_log_numbers
-- Read how many lines and bytes runs have logged, those that were dropped included.
select each.run, (
    select l.last_line from {schema}logs l where l.run = each.run order by l.run desc, l.fence desc, l.n desc limit 1
), (
    select l.last_byte from {schema}logs l where l.run = each.run order by l.run desc, l.fence desc, l.n desc limit 1
)
from {each(:rows, run uuid)}

-- name: trim_logs
-- Delete the oldest groups of lines of runs, those that begin before a line or a byte.
delete from {schema}logs where run {among(:rows, run uuid)} and exists (
    select 1 from {each(:rows, run uuid, line bigint, byte bigint)}
    where {schema}logs.run = each.run
    and ({schema}logs.last_line - {schema}logs.lines < each.line or {schema}logs.last_byte - {schema}logs.bytes < each.byte)
)

-- name: list_logs
-- List a page of the groups of lines of a run that end behind a line.
select fence, n, attempt, lines, last_line, data from {schema}logs
where run = cast(:id as {uuid}) and last_line > cast(:after as bigint) order by fence, n limit 200

-- name: count_logs
-- Count the lines that a run has logged, and those that are kept.
select max(last_line), sum(lines) from {schema}logs where run = cast(:id as {uuid})

-- name: delete_logs
-- Delete the lines of pruned runs.
delete from {schema}logs where run {among(:rows, id uuid)}
