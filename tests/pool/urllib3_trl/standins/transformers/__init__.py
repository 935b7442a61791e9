"""A stand-in: the client imports one helper of transformers, for tools, which the test does not use."""
