"""What unit tests share."""
