"""What the package knows of this host and does to it."""
