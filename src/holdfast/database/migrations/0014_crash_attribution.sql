-- Which run killed its worker process, and how a worker is doing.
--
-- deaths: how many worker processes in a row died with the run in them; an attempt that ends in order resets it.
-- isolation: while it is set, at most this many runs may share a process with the run, and nothing else may run there.
-- died_with: how many runs were running in a session when it was found dead, counted once, before the first of them is recovered.
-- status: the health that the worker last reported, as JSON.

alter table {schema}runs add column deaths int not null default 0;
alter table {schema}runs add column isolation int;
alter table {schema}workers add column died_with int;
alter table {schema}workers add column status text;
