"""What every test gets: the fixtures of natsproto.testing (the plugin is installed), and settings of Hypothesis.

A slow machine is no defect, so examples have no deadline; continuous integration draws the same examples every time,
so that a red run can be run again.
"""

import os

from hypothesis import settings

settings.register_profile("here", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")
