"""Reading a stream: consumers that pull or are pushed to, ordered or shared, and what users read from them."""
