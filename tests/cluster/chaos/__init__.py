"""Every fault that dtj answers for, tried on a training of each strategy; a table says what it cost."""
