"""The benchmarks and their datasets: entries, downloads, checks, images."""
