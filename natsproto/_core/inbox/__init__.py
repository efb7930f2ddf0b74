"""Messages that wait for the user: subscriptions, their limits, handlers and readers."""
