"""`python -m tidelog.owned_job …`: the `tidelog` command as a child that does not outlive the process that owns it.

Its standard input is a pipe from the owner, which never writes to it; the pipe ends when the owner does, for any
reason.
"""

import os
import signal
import threading

from tidelog.__main__ import main


def die_with_owner() -> None:
    while os.read(0, 1):
        pass
    own_group = os.getpgid(0) == os.getpid()  # created by the scheduler; another parent's group is left alone
    (os.killpg if own_group else os.kill)(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    threading.Thread(target=die_with_owner, daemon=True).start()
    main()
