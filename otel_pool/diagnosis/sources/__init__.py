"""Where measurements come from: OTLP that is received here."""
