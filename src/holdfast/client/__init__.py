"""What applications do: enqueue, and look after the runs they made."""
