-- name: declare_budgets
-- Declare budgets, as workers do. A bound that was set at run time stays in force; the declared one is kept for a reset.
-- Timers check the runs that wait for one that has changed.
insert into {schema}budgets as b (name, per, bound, period, on_exceeded, declared_at)
select each.name, each.per, each.bound, each.period, each.on_exceeded, {now}
from {each(:rows, name text, per text, bound bigint, period bigint, on_exceeded text)}
where true order by each.name
on conflict (name) do update set
    bound = case when b.set_at is null then excluded.bound else b.bound end,
    declared_bound = case when b.set_at is null then null else excluded.bound end,
    per = excluded.per, period = excluded.period, on_exceeded = excluded.on_exceeded,
    declared_at = excluded.declared_at, check_at = {now}
where case when b.set_at is null then b.bound else coalesce(b.declared_bound, -1) end <> excluded.bound
    or b.per <> excluded.per or coalesce(b.period, -1) <> coalesce(excluded.period, -1) or b.on_exceeded <> excluded.on_exceeded
returning name

-- name: add_budgets
-- Declare budgets that nobody has declared yet, as clients do.
insert into {schema}budgets (name, per, bound, period, on_exceeded, declared_at)
select each.name, each.per, each.bound, each.period, each.on_exceeded, {now}
from {each(:rows, name text, per text, bound bigint, period bigint, on_exceeded text)}
where true order by each.name
on conflict do nothing

-- name: read_budgets
-- Read budgets by name.
select name, per, bound, period, on_exceeded, declared_bound, set_at, set_by from {schema}budgets where name {among(:rows, name text)}

-- name: lock_budgets
-- Lock budgets in order of their names, and read them: no run that begins to wait misses a change, nor a change such a run.
select name, per, bound, period, on_exceeded, declared_bound, set_at, set_by from {schema}budgets
where name {among(:rows, name text)} order by name {lock}

-- name: list_budgets
-- List the budgets.
select name, per, bound, period, on_exceeded, declared_bound, set_at, set_by from {schema}budgets order by name

-- name: set_budget
-- Set the bound of a budget until it is reset, and keep the declared one.
update {schema}budgets set declared_bound = case when set_at is null then bound else declared_bound end,
    bound = cast(:bound as bigint), set_at = {now}, set_by = cast(:set_by as text), check_at = {now}
where name = :name
returning name

-- name: reset_budget
-- Return to the declared bound of a budget.
update {schema}budgets set bound = coalesce(declared_bound, bound), declared_bound = null, set_at = null, set_by = null, check_at = {now}
where name = :name and set_at is not null
returning name

-- name: set_total
-- Set the bound of one counter; null removes it. Without a total, nothing was spent yet.
insert into {schema}budget_totals (counter, name, per, key, run, spent, total, period_start, bound, set_at, set_by, touched_at)
values (:counter, :name, :per, :key, cast(:run as {uuid}), 0, 0, 0, cast(:bound as bigint),
    case when cast(:bound as bigint) is null then null else {now} end, cast(:set_by as text), {now})
on conflict (counter) do update set bound = excluded.bound, set_at = excluded.set_at, set_by = excluded.set_by

-- name: check_budget_soon
-- Let timers check soon the runs that wait for a budget.
update {schema}budgets set check_at = {now} where name = :name
returning name

-- name: add_spending
-- Add what was spent to counters, in order, and mark those for which runs begin to wait; return what was spent in the
-- current period, when that ends, and the bounds of counters that have their own.
--
-- Periods begin at multiples of their length. A transaction that has waited for the lock may find a later one.
insert into {schema}budget_totals (counter, name, per, key, run, spent, total, period_start, waiting, touched_at)
select each.counter, each.name, each.per, each.key, cast(each.run as {uuid}), each.amount, each.amount,
    coalesce({now} - {now} % each.period, 0), each.waiting, {stamp}
from {each(:rows, counter text, name text, per text, key text, run uuid, amount bigint, period bigint, waiting smallint)}
where true order by each.counter
on conflict (counter) do update set
    spent = case when {schema}budget_totals.period_start < excluded.period_start then excluded.spent
        when {schema}budget_totals.spent > 9000000000000000000 - excluded.spent then 9000000000000000000
        else {schema}budget_totals.spent + excluded.spent end,
    total = case when {schema}budget_totals.total > 9000000000000000000 - excluded.total then 9000000000000000000
        else {schema}budget_totals.total + excluded.total end,
    period_start = case when {schema}budget_totals.period_start < excluded.period_start then excluded.period_start
        else {schema}budget_totals.period_start end,
    waiting = case when excluded.waiting = 1 then 1 else {schema}budget_totals.waiting end,
    touched_at = excluded.touched_at
returning counter, spent, period_start, bound

-- name: pick_budgets_to_check
-- Pick and lock a budget whose waiting runs may have to be woken.
select name from {schema}budgets where check_at is not null and check_at <= {now} order by check_at, name limit 1 {lock_skip_locked}

-- name: find_budget_waiters
-- Find waits for counters of a budget that have room again: one more than are resolved at once.
select w.run, w.generation, w.key, t.counter, coalesce(t.bound, b.bound), case when t.bound is null then b.set_by else t.set_by end
from {schema}budgets b
join {schema}budget_totals t on t.name = b.name and t.waiting = 1
join {schema}waits w on w.target = 'budget:' || t.counter and w.eager = 2 and w.outcome is null
where b.name = :name and (t.spent <= coalesce(t.bound, b.bound) or t.per <> b.per or t.period_start < {now} - {now} % b.period)
order by w.since limit 501

-- name: clear_waiting
-- Mark counters whose waiting runs were woken.
update {schema}budget_totals set waiting = 0 where counter {among(:rows, counter text)}

-- name: clear_budget_check
-- Mark that the runs that wait for a locked budget were checked.
update {schema}budgets set check_at = null where name = :name

-- name: list_budget_totals
-- List the counters of budgets that runs wait for, then those with the highest totals, up to a thousand runs each
-- counted. What was spent in an earlier period counts no more.
select t.name, t.per, t.key, case when t.period_start < {now} - {now} % b.period then 0 else t.spent end, coalesce(t.bound, b.bound),
    t.set_at, t.set_by, case when t.waiting = 0 then 0 else (
        select count(*) from (
            select 1 from {schema}waits w join {schema}runs r on r.id = w.run
            where w.target = 'budget:' || t.counter and w.eager = 2 and w.outcome is null
            and r.finished_at is null and r.ending is null limit 1000
        ) waiting
    ) end
from {schema}budgets b join {schema}budget_totals t on t.name = b.name and t.per = b.per
where b.name = :name and (cast(:key as text) is null or t.key = cast(:key as text))
order by t.waiting desc, t.spent desc limit cast(:size as bigint)

-- name: count_budget_waiters
-- Count the runs that wait for each budget, up to a thousand each.
select b.name, (
    select count(*) from (
        select 1 from {schema}budget_totals t
        join {schema}waits w on w.target = 'budget:' || t.counter and w.eager = 2 and w.outcome is null
        join {schema}runs r on r.id = w.run and r.finished_at is null and r.ending is null
        where t.name = b.name and t.waiting = 1 limit 1000
    ) waiting
) from {schema}budgets b order by b.name

-- name: read_spending
-- Read what runs have spent of each budget, ever.
select t.run, t.name, t.total from {schema}budget_totals t
where t.run {among(:rows, id uuid)} and t.per = 'run' order by t.run, t.name

-- name: read_root
-- Read the root of a run's tree.
select coalesce(root, id) from {schema}runs where id = cast(:run as {uuid})

-- name: delete_spending
-- Delete the totals of pruned runs.
delete from {schema}budget_totals where run {among(:rows, id uuid)}

-- name: prune_spending
-- Delete totals of tenants whose period ended long ago, in small batches, except those with a bound of their own.
with old as materialized (
    select t.counter from {schema}budget_totals t join {schema}budgets b on b.name = t.name
    where t.run is null and b.period is not null and t.bound is null and t.period_start < {now} - 2 * b.period - 3600000000
    limit 500 {lock_skip_locked}
)
delete from {schema}budget_totals where counter {among(old, counter)}
returning counter
