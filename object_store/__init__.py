"""One protocol over S3 and local directories. Built by a later step; empty until then."""
