"""Writes a job's run to an MLflow server, in a process of its own beside `dtj-launch`.

Only this package imports mlflow. `dtj_trainer.launch.tracking` starts the process.
"""
