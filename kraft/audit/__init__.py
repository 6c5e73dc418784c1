"""The metadata as events: for the audit, and for the cluster's exports."""
