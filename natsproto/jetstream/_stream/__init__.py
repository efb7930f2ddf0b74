"""A stream and what is read from it without a consumer; managing streams and consumers."""
