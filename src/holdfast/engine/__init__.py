"""Who works: the loops of a worker process. Each has start, stop, wake and a blocking tick that holds all its logic."""
