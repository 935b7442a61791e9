"""Tools of the project's own house; nothing of the package imports them."""
