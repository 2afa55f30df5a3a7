-- Attribution of worker crashes to runs, and worker health.
--
-- deaths: consecutive worker processes that died while executing the run; an attempt that ends normally resets it.
-- isolation: while set, at most this many runs may share a process with the run, and nothing else may run there.
-- died_with: the runs that a session was executing when it was found dead, counted once, before the first of them is recovered.
-- status: the health that the worker last reported, as JSON.

alter table {schema}runs add column deaths int not null default 0;
alter table {schema}runs add column isolation int;
alter table {schema}workers add column died_with int;
alter table {schema}workers add column status text;
