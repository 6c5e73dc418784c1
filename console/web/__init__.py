"""What happens to every request before and after a page: session, tokens, headers, errors."""
