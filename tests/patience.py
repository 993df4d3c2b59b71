"""The factor that extends the time limits of tests on slow machines.

A limit is for what never comes, not for how soon something comes: a busy machine is several times slower than an idle
one.
"""

from __future__ import annotations

PATIENCE = 6
"""Waits are given in the seconds that an idle machine of two cores may need; a test waits so many times as long."""
