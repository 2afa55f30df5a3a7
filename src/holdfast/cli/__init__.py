"""The command line: `holdfast …`."""

from __future__ import annotations


def main() -> None:
    """The entry point; what a command needs is imported when it is called."""
    from holdfast.cli.commands import holdfast

    holdfast()
