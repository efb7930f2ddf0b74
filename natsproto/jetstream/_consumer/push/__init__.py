"""Push consumers: a subscription to which the server delivers by itself."""
