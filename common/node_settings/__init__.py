"""Settings of brokers, controllers and proxies: a group for each subject, and their catalogue."""
