"""A request on its way to its handler: its context, its turns, its portions, and the way to the controller."""
