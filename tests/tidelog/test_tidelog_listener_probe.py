"""A command whose first address hangs uses the next one."""

from __future__ import annotations

import socket
import threading

import pytest

from tidelog.admin.command_config import ClientSecurity
from tidelog.admin.listener_probe import Refusal, Silent, probe

BRIEF_S = 0.5


def test_an_address_that_is_silent_leaves_the_next_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as ends:

        def end_one() -> None:
            ends.accept()[0].close()

        ended = threading.Thread(target=end_one)
        ended.start()
        both = f"127.0.0.1:{silent.getsockname()[1]},127.0.0.1:{ends.getsockname()[1]}"
        with pytest.raises(Refusal, match=f":{ends.getsockname()[1]} ended the connection"):
            probe(both, ClientSecurity(), BRIEF_S)
        ended.join()


def test_if_all_are_silent_the_first_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        both = f"127.0.0.1:{one.getsockname()[1]},127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(Silent, match=f":{one.getsockname()[1]} does not answer within 0.5 s"):
            probe(both, ClientSecurity(), BRIEF_S)
