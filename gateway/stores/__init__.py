"""The stores of what applications have learnt: one thread for all of them, a file for each kind."""
