"""Jobs of other operators as DistributedTrainingJobs."""
