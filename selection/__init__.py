"""Model selection: policies that learn from feedback which models answer (Clipper, section 5). Pure.

An application's policy selects members for a request, combines their predictions into one answer, and learns
from feedback. Time, and the generator of random numbers, are arguments. `policy.py` says what a policy is,
`policies/` has them; `outputs.py` compares predictions with each other and with the truth, `ledger.py` keeps
what was answered until its feedback comes, and `contexts.py` a state for each user.
"""
