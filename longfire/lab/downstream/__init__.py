"""Fine-tune checkpoints on tasks and test them, or test them without fine-tuning."""
