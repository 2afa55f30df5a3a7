-- What the code of runs has logged, in groups of lines.

-- fence: the claim whose code logged them. n: the number of the group among those of the claim. lines, bytes: of this group. last_line, last_byte:
-- how many lines and bytes the run had logged by its end, those that were dropped included. data: packed JSON.
create table {schema}logs (
    run {uuid} not null,
    fence bigint not null,
    n int not null,
    attempt int not null,
    lines int not null,
    bytes int not null,
    last_line bigint not null,
    last_byte bigint not null,
    at bigint not null,
    data text not null,
    primary key (run, fence, n)
) {clustered};
