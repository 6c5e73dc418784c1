"""Which replicas go where: emptying a broker."""
