-- Rows that are changed again and again have room beside them for their next version, on PostgreSQL, which writes a new one each time: a
-- version on the same page is written in less, and where no index has to know of it (progress, counters of limits) no index is touched.
-- The table of runs changes whole in minutes, and our plans don't go by its statistics: they are taken half as often as the default has it.

{storage(runs, fillfactor = 50, autovacuum_analyze_scale_factor = 0.2)};
{storage(limits, fillfactor = 50)};
