-- PostgreSQL: vacuum runs early and fast. Claimed rows stay at the head of the ready index until vacuum removes them, and each claim from
-- the head walks over them. The threshold is a fiftieth of the table instead of a fifth, and vacuum works at ten times the default speed:
-- at the default, the next vacuum is due before the last one is done.

{storage(runs, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_limit = 2000)};
