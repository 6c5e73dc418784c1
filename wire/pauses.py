"""Why a connection handles no further frame at the moment: bits of one number, as several may hold at once.

They are plain numbers, because they are looked at for each frame and an IntFlag's `&` takes forty times as long.
"""

from typing import Final

MUTED: Final = 1
REPLIES: Final = 2  # too many wait for their turn
HELD: Final = 4  # too many bytes of requests in the hands of handlers
UNSENT: Final = 8  # the peer does not read its replies
MEMORY: Final = 16  # half a frame is held and the node's budget is used up
CLOSING: Final = 32
