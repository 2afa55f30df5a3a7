"""Databases of each release with runs in flight, and whether today's code brings those to their end."""
