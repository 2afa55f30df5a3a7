"""What tests and benchmarks need: a PostgreSQL server to throw away. Never imported by the rest of the library."""
