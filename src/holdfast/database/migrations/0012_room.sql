-- Rows that are changed again and again have room beside them for their next version, on PostgreSQL, which writes a new one each time: a
-- version on the same page is written in less, and where no index has to know of it (progress, counters of limits) no index is touched.
-- Dead rows are cleaned up when they are a twentieth of the table, not a fifth: what was claimed stands at the front of the ready index till then.

{storage(runs, fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05)};
{storage(limits, fillfactor = 50)};
