"""Size: what a configuration can carry per worker, and what runs out first.

`plan` and `host` are what is known, `model` the formulas, `sizing` the derived figures, `findings` the rules,
`report` the words. `startup` says the same at the start of every proxy. Nothing is imported here, so that
`otel-pool check` starts quickly.
"""
