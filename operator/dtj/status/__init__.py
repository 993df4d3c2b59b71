"""From a job and what is observed of it to its status and what comes next. Pure."""
