"""Worker processes and task processes: the pool, its protocol and the supervisor."""
