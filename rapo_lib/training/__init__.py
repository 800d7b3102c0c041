"""What the hybrid trainer is made of: losses, group rows, teacher, checkpoints, signs of collapse, model card."""
