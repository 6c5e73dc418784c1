"""What pages show, worked out from what the cluster answered. No I/O."""
