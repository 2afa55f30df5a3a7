-- Which call of a step wrote a chunk.

-- step: the key of the step; null for chunks of the function's body. step_try: the number of the step's try in the attempt; null for the first.
alter table {schema}chunks add column step text;
alter table {schema}chunks add column step_try int;
