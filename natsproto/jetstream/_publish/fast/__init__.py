"""Fast batches (ADR-50): publishing with flow control by the server."""
