"""``mainspring balance``: moves models and workers between the controllers of one cluster."""
