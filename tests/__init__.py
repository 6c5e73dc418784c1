"""The test suite: one folder per room."""
