"""The cluster's exports to its bucket beside segments: its metadata, and the audit."""
