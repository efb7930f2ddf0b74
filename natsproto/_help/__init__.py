"""Advice for wrong guesses: names of other clients, missing awaits, wrong keywords."""
