"""A request on its way to its handler: context, slices, portions, and forwarding to the controller."""
