"""The bucket as a whole: what lies in it, whether that agrees, what may go, what is brought back."""
