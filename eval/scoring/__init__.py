"""From a harness's sample log to scores with intervals and tests."""
