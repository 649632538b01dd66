"""The policies of model selection."""
