"""Step 3: from a harness's sample log to scores with intervals and tests."""
