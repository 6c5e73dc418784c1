"""Ctrl-C in a command that runs long in Java: it ends within seconds, whatever the main thread waits for.

Python delivers a signal only to the main thread, between two of its instructions. A wait in a system call continues if
the signal came just before it or to another thread, an exception raised in a finalizer is lost, and Java may not
respond. Here another thread gets the signal from the C handler, wakes the main thread until it has reacted, and ends
the process if the orderly end takes longer than `LIMIT_S`. Java ends when its standard input does.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from types import FrameType

EXIT_INTERRUPTED = 130  # as shells have it for SIGINT
LIMIT_S = 5.0  # for stores to be closed and Spark to be stopped
WAKE_EVERY_S = 0.25
SAID = "tidelog: interrupted"
_SHOW_CURSOR = "\x1b[?25h"  # which bars hide


class Interruption:
    """The interruption of one command; `heard` is true from Ctrl-C on."""

    def __init__(self) -> None:
        self.heard = False
        self._within = False  # only the block is interrupted, and only once
        self._raised = False
        self._said = False
        self._done = threading.Event()

    @contextmanager
    def block(self) -> Iterator[Interruption]:
        """Ctrl-C within ends the command with one line and `EXIT_INTERRUPTED`.

        The block is broken off by KeyboardInterrupt, once, and has `LIMIT_S` from then on.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self  # Python delivers signals to no other thread
            return
        handler = signal.getsignal(signal.SIGINT)
        self._listen()
        signals, wakeup_end = socket.socketpair()
        wakeup_end.setblocking(False)
        wakeup = signal.set_wakeup_fd(wakeup_end.fileno(), warn_on_full_buffer=False)
        watch = threading.Thread(target=self._watch, args=(signals,), name="interruption", daemon=True)
        watch.start()
        try:
            try:
                self._within = True
                if self.heard:
                    raise KeyboardInterrupt
                yield self
            finally:
                self._within = False
        except BaseException as error:
            if not self.heard and not isinstance(error, KeyboardInterrupt):
                raise
            self.heard = True
        finally:
            if self.heard:
                self.say()
                _flush_output()
            self._done.set()
            signal.set_wakeup_fd(wakeup)
            wakeup_end.shutdown(socket.SHUT_WR)
            watch.join()
            signals.close()
            wakeup_end.close()
            signal.signal(signal.SIGINT, handler)
        if self.heard:
            raise typer.Exit(EXIT_INTERRUPTED)

    @contextmanager
    def lent(self) -> Iterator[None]:
        """A part of the block in which others may handle the signal, as PySpark does when it creates a session.

        PySpark's handler calls Java during the call that it interrupts.
        """
        try:
            yield
        except KeyboardInterrupt:
            self._raised = True
            raise
        finally:
            if threading.current_thread() is threading.main_thread():
                self._listen()

    def say(self) -> None:
        """Print the one line, once."""
        if not self._said:
            self._said = True
            print(SAID, file=sys.stderr, flush=True)

    def _listen(self) -> None:
        signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        self._hear()
        if self._within and not self._raised:
            self._raised = True
            raise KeyboardInterrupt

    def _hear(self) -> None:
        """Suppress logs and warnings, because Py4J and PySpark turn the interruption into other errors with
        tracebacks."""
        self.heard = True
        logging.disable()
        warnings.simplefilter("ignore")

    def _watch(self, signals: socket.socket) -> None:
        while (number := signals.recv(1)) != bytes((signal.SIGINT,)):
            if not number:
                return
        self._hear()
        for _ in range(round(LIMIT_S / WAKE_EVERY_S)):
            if self._done.wait(WAKE_EVERY_S):
                return
            if self._within and not self._raised:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        self._end_now()

    def _end_now(self) -> NoReturn:
        """End at once, whatever locks the main thread holds, such as that of the terminal's bars."""
        text = "" if self._said else SAID + "\n"
        if os.isatty(2):
            text = _SHOW_CURSOR + text
        try:
            os.set_blocking(2, False)
            os.write(2, text.encode())
        finally:
            os._exit(EXIT_INTERRUPTED)


def _flush_output() -> None:
    """Flush within the remaining time. Ctrl-C also ends the reader of the output, which Python would report at its
    end."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
