"""Policies against each other and against what was possible, in virtual time.

``python -m mainspring.experiments.policies``, which ``make policies`` runs; docs/policy-results.md has
what came out.
"""
