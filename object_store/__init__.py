"""One protocol for whole objects in S3 or in a local directory."""
