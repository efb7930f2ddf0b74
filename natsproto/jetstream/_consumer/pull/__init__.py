"""Pull consumers: when to ask for messages and for how many, and what the server says to a request."""
