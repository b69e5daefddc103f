"""What is explained: texts, images, sentence encoders, checkpoints."""
