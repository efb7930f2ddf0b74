"""``nats.aio.errors``: the names that exceptions had before nats-py 2.0: ErrTimeout for TimeoutError.

In nats-py they are subclasses that nothing raises; here they are the same classes, so that ``except`` catches.
"""

from __future__ import annotations

from natsproto.compat.nats import errors

globals().update({f"Err{name[:-5]}": kind for name, kind in vars(errors).items() if name.endswith("Error")})
NatsError = errors.Error
