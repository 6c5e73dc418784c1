"""`make demo` and `make demo-compose`: real data on the whole way, through brokers, object store and Spark."""
