"""The policies of model selection, a file for each."""
