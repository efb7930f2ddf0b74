"""The version of natsproto; what CONNECT tells the server and the wheel is named after."""

__version__ = "0.1.0"
