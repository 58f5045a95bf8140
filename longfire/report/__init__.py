"""What a person sees: tables, plots and pages."""
