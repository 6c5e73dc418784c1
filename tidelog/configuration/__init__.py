"""Converts an operator's settings to the plain values from which processes are built."""
