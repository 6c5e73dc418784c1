"""Metadata: records, image, controllers and observers."""
