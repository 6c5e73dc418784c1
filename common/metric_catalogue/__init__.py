"""What every node measures, by area."""
