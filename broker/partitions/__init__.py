"""One replica of one partition: role, high watermark, ISR, and the requests that wait for them."""
