"""Conversion of the jobs of other operators, and of scripts, to DistributedTrainingJobs."""
