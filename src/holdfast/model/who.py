"""Who we are, for records of who did something."""

from __future__ import annotations

import getpass
import socket


def this_user() -> str:
    """The user of this process, and the machine: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no entry for it
        user = "unknown"
    return f"{user}@{socket.gethostname()}"
