"""Publishing to streams: one at a time, in windows, in batches, and on a schedule."""
