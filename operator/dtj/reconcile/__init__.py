"""Compare the desired state of jobs with the observed state, and carry out the actions that close the gap."""
