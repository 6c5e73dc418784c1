"""One replica of one partition: high watermark, ISR, and who waits for what."""
