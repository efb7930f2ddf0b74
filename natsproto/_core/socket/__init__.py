"""One connection to a server: dialling, TLS, WebSocket, reading and writing."""
