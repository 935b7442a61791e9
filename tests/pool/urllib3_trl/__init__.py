"""TRL's own client of a vLLM server, in an environment of its own.

`environment.py` makes the environment, `driver.py` runs inside it, and `standins/` holds what the client imports and
does not need for its calls: torch, and one helper of transformers.
"""
