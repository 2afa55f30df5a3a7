-- Budgets: how much runs may spend. Amounts are integers in billionths of a unit.

-- bound: what may be spent per run, tree or tenant, within each period (microseconds; null: ever). set_at, set_by: when and by whom another
-- bound than the declared one was set, which is in declared_bound until a reset. check_at: when waiting runs may have to be woken.
create table {schema}budgets (
    name text primary key,
    per text not null check (per in ('run', 'tree', 'tenant')),
    bound bigint not null check (bound >= 0),
    period bigint check (period > 0),
    on_exceeded text not null check (on_exceeded in ('wait', 'fail')),
    declared_at bigint not null,
    declared_bound bigint,
    set_at bigint,
    set_by text,
    check_at bigint
);

create index holdfast_budgets_check on {schema}budgets (check_at) where check_at is not null;

-- What was spent of a budget. counter: [name, per, key]; key: the run, the root of the tree, or the tenant. Each run has a counter of its own,
-- whatever the budget is per. spent: within the period that began at period_start. total: ever. bound, set_at, set_by: the bound of this
-- counter, if it has its own. waiting: 1 while runs wait for it, or did before.
create table {schema}budget_totals (
    counter text primary key,
    name text not null,
    per text not null,
    key text not null,
    run {uuid},
    spent bigint not null,
    total bigint not null,
    period_start bigint not null,
    bound bigint,
    set_at bigint,
    set_by text,
    waiting smallint not null default 0,
    touched_at bigint not null
);

create index holdfast_budget_totals_run on {schema}budget_totals (run) where run is not null;
create index holdfast_budget_totals_waiting on {schema}budget_totals (name) where waiting = 1;
create index holdfast_budget_totals_spent on {schema}budget_totals (name, spent);

-- Runs that wait for a budget have a wait for an event that nobody emits, named budget: and the counter, with eager 2 like the waits of steps
-- for a limit.
