"""Tables and pictures of training runs, made from their metrics files."""
