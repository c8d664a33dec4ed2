"""What is made of a finished run: tables, figures, the report page, model cards."""
