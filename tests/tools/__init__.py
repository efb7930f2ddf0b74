"""Programs that write lists and texts of the project, and that measure it."""
