"""Training programs ready to run: `python -m dtj_trainer.programs.<name>`."""
