"""Fuzzing with atheris, on demand (``make fuzz``); the targets run on a few inputs in the suite as well."""
