"""What a log remembers of its idempotent and transactional producers."""
