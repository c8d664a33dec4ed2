"""Output from a finished run: tables, figures, the report page, model cards."""
