"""`report.html`, one page about a finished run."""
