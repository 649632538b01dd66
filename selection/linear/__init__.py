"""Personal linear models: a prediction is w_u . f(x), with weights of each user (Velox, chapter 2). Pure.

`weights.py` has one user's weights and keeps them by rank-one updates, `users.py` those of all; `ranking.py`
finds the best items, `quality.py` sums errors, `retraining.py` fits the table of items again, and `model.py`
has the versions between which one can go forth and back.
"""
