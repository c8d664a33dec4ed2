"""Loading any vision-language model and observing its forward pass."""
