"""Writing the messages of a task that may run more than once, so that a repetition stores nothing twice."""
