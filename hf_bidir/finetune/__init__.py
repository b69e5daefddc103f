"""Fine-tuning with the transformers Trainer: what the scripts in `training/` are made of."""
