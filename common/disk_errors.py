"""What a disk refuses that is no fault of its own, and passes: error numbers."""

from __future__ import annotations

import errno

NO_FILES = (errno.EMFILE, errno.ENFILE)
"""The process, or the system, has no more files to open."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""The device is full, or what one may have of it."""
