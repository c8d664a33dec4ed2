"""Step 2: training and evaluation, side by side on the cores or GPUs of this machine."""
