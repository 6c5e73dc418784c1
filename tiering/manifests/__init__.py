"""What the tier holds of a partition, published in the bucket for readers without any broker."""
