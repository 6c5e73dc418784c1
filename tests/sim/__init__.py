"""The deterministic simulator: product code on virtual time, simulated network and disks, checked after every event."""
