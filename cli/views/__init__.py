"""Tables that verbs print."""
