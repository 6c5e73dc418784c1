"""What the machines of a cluster need in their file systems: configurations, units of systemd, addresses to scrape."""
