"""The asyncio core without a network: memory wires, a scripted server, virtual time."""
