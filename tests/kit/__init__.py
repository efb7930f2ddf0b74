"""Tools for the tests: a clock, a wire, a server, a proxy and two corpora.

Owns everything tests need to make time pass, lose bytes and lie. Knows nothing of natsproto's code:
what is tested must not be tested with itself. Each module stands alone; import from the module.
"""
