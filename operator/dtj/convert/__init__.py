"""Conversion of the jobs of other operators to DistributedTrainingJobs."""
