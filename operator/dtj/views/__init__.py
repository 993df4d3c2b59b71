"""The parts that the `dtj` command and the page of `dtj ui` share: places of jobs, their states and runs as text.

`cli` prints the texts on a terminal, and `ui` sends them to a browser. The package itself neither prints, nor reads
options of a command, nor uses HTTP.
"""
