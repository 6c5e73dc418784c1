"""Error numbers of passing shortages, which are no fault of the disk."""

from __future__ import annotations

import errno

NO_FILES = (errno.EMFILE, errno.ENFILE)
"""The process or the system has no free file descriptor."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""The device is full, or the quota is used up."""
