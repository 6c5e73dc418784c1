"""The cluster of docker-compose.yml, run for real: `make test-compose`, with the Docker daemon that is found."""
