-- name: unique_name_of
-- The unique name of a run.
select unique_name from {schema}runs where id = cast(:id as {uuid})

-- name: retry_runs
-- Failed and cancelled runs, and skipped nodes, go back to ready, behind what is ready already, with new budgets; those that couldn't finish undoing go on with that. One that a worker is
-- still at, or whose unique name's other run a worker is still at, is held until it has let go; one whose unique name has an unfinished
-- run stays as it is.
update {schema}runs
set state = 'ready', held = case when session is not null or (
        select 1 from {schema}runs old
        where old.unique_name = {schema}runs.unique_name and old.finished_at is not null and old.session is not null limit 1
    ) = 1 then 'quiescing' end, turn = {next_turn({schema}runs, {now})}, attempt = 0, failures = 0, crashes = 0, deaths = 0,
    isolation = null, resumed = 0, spent = 0,
    error = cause, result = null, deadline = case when ending is null then {now} + lifetime end, records = records + 1,
    started_at = null, finished_at = null, expires_at = null
where id {among(:rows, id uuid)} and state in ('failed', 'cancelled', 'skipped')
and (select 1 from {schema}runs other where other.unique_name = {schema}runs.unique_name and other.finished_at is null limit 1) is null
returning id, records, ending, generation, parent, spawn_key, place, kind, {notify_workers}

-- name: drop_undone
-- Steps that were undone are to be run again when their run is: they don't count as finished any more. What says that they were undone
-- stays: another try has another idempotency key.
delete from {schema}checkpoints where run {among(:rows, id uuid)} and (run, generation, n) in (
    select u.run, u.generation, cast(u.value as int) from {schema}checkpoints u where u.run {among(:rows, id uuid)} and u.kind = 'undone'
)

-- name: number_record
-- The number of the next record of a locked run.
update {schema}runs set records = records + 1 where id = cast(:id as {uuid}) returning records, attempt
