-- only: postgres
-- Check runs with two constraints instead of eight. PostgreSQL parses all constraints of a table for every statement that changes its
-- rows: of a claim and an end of one run they took nearly half of the instructions, and take a third now (bench: latency). Values that were
-- refused still are. An array is one literal, because a list takes longer to parse. Not validated: existing rows satisfy the constraints
-- that these replace, so no table is scanned.

alter table {schema}runs drop constraint if exists holdfast_runs_bounds;
alter table {schema}runs drop constraint if exists holdfast_runs_start_by;
alter table {schema}runs drop constraint if exists runs_check;
alter table {schema}runs drop constraint if exists runs_check1;
alter table {schema}runs drop constraint if exists runs_check2;
alter table {schema}runs drop constraint if exists runs_state_check;
alter table {schema}runs drop constraint if exists runs_ending_check;
alter table {schema}runs drop constraint if exists runs_kind_check;

alter table {schema}runs add constraint holdfast_runs_bounds check (
    least(attempt, failures, crashes, deaths, generation, records) >= 0
    and greatest(attempt, failures, crashes, deaths, generation, records) <= 2000000000
    and least(fence, keep, keep_failed, spent) >= 0
    and greatest(turn, fence) <= 4611686018427387904 and turn >= -4611686018427387904
    and least(lifetime, created_at, claimed_at, ready_at, started_at, start_by, due_at, deadline) >= -400000000000000000
    and greatest(keep, keep_failed, spent, lifetime, created_at, claimed_at, ready_at, started_at, start_by, due_at, deadline)
        <= 400000000000000000
) not valid;

alter table {schema}runs add constraint holdfast_runs_states check (
    case
        when finished_at is not null then state = any ('{done,failed,cancelled,skipped}')
        when state = 'running' then session is not null
        when state = 'scheduled' then due_at is not null
        else state = any ('{ready,waiting,blocked,undoing}')
    end
    and kind = any ('{graph,gate}') and ending = any ('{failed,cancelled}')
) not valid;
