"""The inside of the embedded judge: text in, readings, marks and critiques out. It imports nothing of the seeker."""
