"""Who may come in: credentials, sessions, and how often somebody may try."""
