"""Tables and pictures of finished runs, from their metrics."""
