"""The data source `tidelog`: what to read, planned in the driver, and how executors read it."""
