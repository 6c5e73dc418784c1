"""Reasons why a connection handles no further frame at the moment: bits of one number, because several may hold at
once.

They are plain numbers, because they are tested for each frame and an IntFlag's `&` takes forty times as long.
"""

from typing import Final

MUTED: Final = 1
REPLIES: Final = 2  # too many replies are pending
HELD: Final = 4  # handlers hold too many bytes of requests
UNSENT: Final = 8  # the peer does not read its replies
MEMORY: Final = 16  # a partial frame is held and the node's budget is used up
CLOSING: Final = 32
TURN: Final = 64  # its frames held the loop for long enough: others come first
