-- ready_at: when a run last became ready; null for a run that has been ready since its creation. Statistics of waiting times and the age of
-- the oldest ready run count from here. (`turn` is not that time in fair queues, nor for nodes of graphs and children of maps.)

alter table {schema}runs add column ready_at bigint;
