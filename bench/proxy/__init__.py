"""What the proxy costs beside haproxy, and beside no proxy at all."""
