"""Proof that no row of a batch depends on another: the batch axis, followed through every node.

Requests of different callers share an execution only where this proves that they can't change each other's
answers. ``step`` has the facts about a tensor, ``walk`` goes through the nodes by the rules of ``table``. A
rule is a statement about an operator: where the batch axis is afterwards, or why rows influence each other.
Nothing is proven of an operator without a rule.
"""
