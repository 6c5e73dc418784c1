"""The nodes' side: the way to the active controller, a broker's standing with it, and the metadata that it commits."""
