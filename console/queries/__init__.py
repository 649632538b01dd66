"""Queries of a view: each is a pure function from a `View` to a payload (`console.payloads`).

Each raises `asking.BadQuery` for what can't be asked and `asking.Unknown` for a subject that there is not;
both say what would be right.
"""
