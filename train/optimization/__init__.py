"""What is trained and how: parameter groups, adapters, and the trainer."""
