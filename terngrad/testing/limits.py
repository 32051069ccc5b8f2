"""How long tests wait for what must happen.

No test depends on how fast the machine is. This limit only ends what hangs, so it is far longer
than anything takes on a busy machine; pytest's own limit for a whole test is longer still.
"""

HANG_SECS = 900.0
