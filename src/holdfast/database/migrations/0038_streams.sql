-- What tells the readers of a stream which chunks no longer count, because the code that wrote them ran again.

-- fence, generation: the claim that wrote the chunk and the generation of the run; null if an older release wrote it.
-- serial: of a chunk of the body, which of the body's writes in this generation it is; of a chunk of a step, which of the writes in steps of this claim.
-- started_over: 1 if the run started over after this chunk, which was its last.
alter table {schema}chunks add column fence bigint;
alter table {schema}chunks add column generation int;
alter table {schema}chunks add column serial int;
alter table {schema}chunks add column started_over smallint;

-- Find the last chunk of a step, or of the body, before another one.
create index holdfast_chunks_of_steps on {schema}chunks (run, (coalesce(step, '')), n);
