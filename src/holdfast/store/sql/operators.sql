-- name: lock_runs
-- Locks runs in the order of arrival and tells their states and unique names.
select r.state, r.unique_name
from {schema}runs r where r.id {among(:rows, id uuid)}
order by r.seq {lock}

-- name: cancel_runs
-- Unfinished runs end cancelled, for everyone but the worker that may still be at them: its mark stays until it has let go.
update {schema}runs
set state = 'cancelled', error = :error, due_at = null, held = null, records = records + 1, finished_at = {now}, expires_at = {now} + keep
where id {among(:rows, id uuid)} and finished_at is null
returning id, records, attempt, session, claimed_at

-- name: retry_runs
-- Failed and cancelled runs go back to ready with new budgets. One that a worker is still at, or whose unique name's other run a worker
-- is still at, is held until it has let go; one whose unique name has an unfinished run stays as it is.
update {schema}runs
set state = 'ready', held = case when session is not null or exists (
        select 1 from {schema}runs old
        where old.unique_name = {schema}runs.unique_name and old.finished_at is not null and old.session is not null
    ) then 'quiescing' end, attempt = 0, failures = 0, crashes = 0,
    error = null, result = null, deadline = {now} + lifetime, records = records + 1, started_at = null, finished_at = null, expires_at = null
where id {among(:rows, id uuid)} and state in ('failed', 'cancelled')
and not exists (select 1 from {schema}runs other where other.unique_name = {schema}runs.unique_name and other.finished_at is null)
returning id, records, {hint}
