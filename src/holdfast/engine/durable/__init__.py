"""Execute durable functions: plans of operations, executors that carry them out, and replay from history."""
