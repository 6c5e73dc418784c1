"""Controller clients of a node: the channel to the active controller, a broker's registration, the metadata
observer."""
