"""``mainspring demo --graphs``: graphs of real models beside clients that call step after step."""
