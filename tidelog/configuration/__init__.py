"""From settings, as an operator writes them, to the plain values that processes are built with."""
