"""What commands ask of the tier: of brokers, and of the object store itself."""
