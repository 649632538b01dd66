"""What is shown and measured with the whole system: the demonstration, and the cost of the serving path."""
