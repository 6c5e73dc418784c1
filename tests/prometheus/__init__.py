"""Boards and alarms with Prometheus' own programs: `make test-boards`, where Debian's package `prometheus` is."""
