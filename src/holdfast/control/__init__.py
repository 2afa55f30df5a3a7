"""What operators do: the only way in for the command line, the API and the dashboard. Answers are plain data."""

from holdfast.control.control import Control

__all__ = ["Control"]
