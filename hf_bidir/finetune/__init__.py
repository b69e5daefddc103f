"""Fine-tuning with the transformers Trainer: the library behind the scripts in `training/`."""
