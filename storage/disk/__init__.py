"""Files of a log directory, and the device below them: reads, writes, flushes, checkpoints, health."""
