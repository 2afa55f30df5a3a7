-- Runs are cleaned up soon and quickly, on PostgreSQL: what was claimed stands at the front of the ready index until then, and every claim
-- from there walks over it. So the number of dead rows that are waited for grows less with what is kept (a fiftieth of it, not a fifth).
-- And the work is done at ten times the default's speed: at that one, the next of it is due before the last is done.

{storage(runs, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_limit = 2000)};
