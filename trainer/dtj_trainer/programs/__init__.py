"""Built-in training programs: `python -m dtj_trainer.programs.<name>`."""
