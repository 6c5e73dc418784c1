"""What the cluster writes to its bucket beside segments: its metadata, and the audit."""
