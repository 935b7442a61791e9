"""The proof: a synthetic engine, load drivers, and the benchmarks that use them."""
