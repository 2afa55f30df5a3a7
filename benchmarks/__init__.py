"""Benchmarks: how fast Holdfast is, what it costs, whether its speed lasts, and how other libraries compare.

Run them with `./dev bench`. Each benchmark is a module in `suite/`, `peers/` measures other libraries, and the other
modules are shared.
"""
