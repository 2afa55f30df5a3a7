"""LangGraph: a checkpointer on Holdfast's database, and graphs that run inside durable functions.

Needs `pip install "holdfast[langgraph]"`. `saver.py` has the checkpointer, `supersteps.py` runs a graph.
"""

from __future__ import annotations

try:
    import langgraph.checkpoint.base
    import langgraph.pregel  # noqa: F401
except ImportError as error:
    raise ImportError(
        'holdfast.integrations.langgraph needs LangGraph: pip install "holdfast[langgraph]"', name=error.name
    ) from error

from holdfast.integrations.agents import Price
from holdfast.integrations.langgraph.saver import HoldfastSaver
from holdfast.integrations.langgraph.supersteps import run_graph

__all__ = ["HoldfastSaver", "Price", "run_graph"]
