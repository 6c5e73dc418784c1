"""What a release is made of: packages, the list of what is in them, its signature, and generated reference pages."""
