"""The one table of names: every metric, attribute and span, by room.

`docs/metrics.md` is generated from it (`make docs`), instruments are made from it, and tests hold them equal.
"""
