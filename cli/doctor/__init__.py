"""What this machine offers a cluster."""
