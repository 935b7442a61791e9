"""The tests of the libraries that we patch, run with our hook on: what passes without us passes with us."""
