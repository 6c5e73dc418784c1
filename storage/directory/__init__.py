"""One log directory: creates, finds and removes its logs."""
