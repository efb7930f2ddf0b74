"""Wrong use of natsproto: the corpus, and in test_misuse.py the one runner of it.

An entry is a call, the error that it raises, the words of its sentence, and whether it may send something before.
``lines`` has those that one can write on a line, with ``right`` beside it, and ``programs`` runs both. ``values`` and
``arguments`` have calls times values, and ``signatures`` and ``workers`` find theirs in what is public. Effects that
are not an error of the call, such as warnings, logs and failures of a handler, have tests of their own.
"""
