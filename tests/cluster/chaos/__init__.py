"""Every fault that dtj handles, on a training of each strategy, with a table of the costs."""
