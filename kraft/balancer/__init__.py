"""Which replicas go where: emptying a broker. Load model and goals are built by a later step."""
