"""Entry point of `tidelog`. Ctrl-C ends it silently from the first line on.

The imports take a quarter of a second, in which Python would otherwise print a traceback.
"""

from __future__ import annotations

import signal


def main() -> None:
    interrupted = signal.getsignal(signal.SIGINT)
    if interrupted is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tidelog.command_line import run  # noqa: PLC0415  not before the signal has its default

    run(interrupted)


if __name__ == "__main__":
    main()
