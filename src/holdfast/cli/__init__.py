"""The command line: `holdfast …`."""

from __future__ import annotations


def main() -> None:
    """Run the CLI. Commands import what they need when they are called."""
    from holdfast.cli.commands import holdfast

    holdfast()
