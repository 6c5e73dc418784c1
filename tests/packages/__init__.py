"""What is shipped, tried as its users do: `make test-packages`. Some of it needs tools of its own."""
