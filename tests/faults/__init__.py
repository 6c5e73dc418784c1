"""Attacks on real processes: bad input, hostile clients, dead and frozen nodes, full disks, wrong settings."""
