"""Records as lines: what `tidelog produce` reads and `tidelog consume` prints."""
