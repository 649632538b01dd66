"""The command line and the launcher: from what a person types to a cluster's processes."""
