"""The state of a log's idempotent and transactional producers."""
