"""What applications do: enqueue runs, wait for results, and act on runs."""
