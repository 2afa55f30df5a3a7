-- only: postgres
-- Check only what keeps the states of runs and waits consistent. PostgreSQL parses the text of all constraints of a table for every
-- statement that changes its rows: for a claim and an end of one run, three tenths of its instructions (docs/decisions/0059-check-states-only.md).
-- Numbers, times, kinds and endings are checked by the code that reads them, as on SQLite. Not validated: existing rows satisfy the
-- constraints that these replace, so no table is scanned.

alter table {schema}runs drop constraint if exists holdfast_runs_bounds;
alter table {schema}runs drop constraint if exists holdfast_runs_states;
alter table {schema}waits drop constraint if exists holdfast_waits_bounds;
alter table {schema}waits drop constraint if exists waits_kind_check;
alter table {schema}waits drop constraint if exists waits_outcome_check;
alter table {schema}waits drop constraint if exists waits_check;

-- A final run has an end, a running one a session, a scheduled one a time. Without them no worker would ever find the run.
alter table {schema}runs add constraint holdfast_runs_states check (
    case
        when finished_at is not null then state = any ('{done,failed,cancelled,skipped}')
        when state = 'running' then session is not null
        when state = 'scheduled' then due_at is not null
        else state = any ('{ready,waiting,blocked,undoing}')
    end
) not valid;

-- An open wait has no outcome, and a resolved one has a time, which orders replays.
alter table {schema}waits add constraint holdfast_waits_states check (
    (outcome is null) = (settled_at is null)
    and kind = any ('{sleep,event,message,children}') and outcome = any ('{due,event,message,children,failed}')
) not valid;
