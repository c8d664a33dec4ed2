"""What the commands share: models and images, hooks on the decoder, statistics, tables and figures."""
