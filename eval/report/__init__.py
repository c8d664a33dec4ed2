"""What is made from `scores.json`: tables and figures."""
