"""What logs owe the audit, and the journal that keeps it until it is shipped."""
