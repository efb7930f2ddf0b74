"""The version of natsproto, in CONNECT and in the name of the wheel."""

__version__ = "0.1.0"
