"""Figure 2 of Clockwork: one inference at a time is predictable, several at a time are not (section 2).

``python -m mainspring.experiments.predictability``; docs/experiments.md says what came out.
"""
