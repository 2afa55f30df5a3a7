"""Open file description (OFD) locks: byte-range locks that belong to an open file, not to a process.

The kernel releases them when the file is closed, also because its process died. Only Linux has them here.
"""

from __future__ import annotations

import os
import struct
import sys

if sys.platform == "linux":
    import fcntl

AVAILABLE = sys.platform == "linux" and hasattr(fcntl, "F_OFD_SETLK")
FLOCK = struct.Struct("hhqqi4x")
"""C's `struct flock`: type, whence, start, length, pid."""


def lock_request(kind: int, first: int, size: int) -> bytes:
    """Pack a request for `fcntl.fcntl`: `size` bytes from `first` on; 0 means up to the last one."""
    return FLOCK.pack(kind, os.SEEK_SET, first, size, 0)
