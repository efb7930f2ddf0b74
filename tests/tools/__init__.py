"""Programs that write lists and texts of the project, measure it, or run for minutes; CONTRIBUTING.md lists them."""
