"""The rows of `make bench` for the tier: `python -m bench.tier`."""
