"""The whole surface of a broker on one screen: which handler answers which API.

Versions and listener kinds are in `wire.apis`; a request of an API without a handler here never gets past the table.
Produce and Fetch (keys 0 and 1) are not here: they take the hand-packed way.
"""
