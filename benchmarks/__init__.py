"""Side-by-side measurements of natsproto and nats-py on one machine. See docs/benchmarks.md."""
