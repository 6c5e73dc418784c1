"""Why a connection handles no further frame at the moment."""

from enum import IntFlag


class Pause(IntFlag):
    """Several may hold at once."""

    MUTED = 1
    REPLIES = 2  # too many wait for their turn
    HELD = 4  # too many bytes of requests in the hands of handlers
    UNSENT = 8  # the peer does not read its replies
    MEMORY = 16  # half a frame is held and the node's budget is used up
    CLOSING = 32
