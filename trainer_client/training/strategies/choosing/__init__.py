"""What is taken, for what was asked and what is there."""
