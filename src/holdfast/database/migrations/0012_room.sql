-- PostgreSQL: leave free space in pages of frequently updated rows. PostgreSQL writes a new version per update; one on the same page is
-- cheaper, and touches no index if no indexed column changed (progress, limit counters). The runs table changes completely within
-- minutes, and no plan depends on its statistics, so it is analyzed half as often as by default.

{storage(runs, fillfactor = 50, autovacuum_analyze_scale_factor = 0.2)};
{storage(limits, fillfactor = 50)};
