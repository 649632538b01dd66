"""``make gpu-check``: what only a GPU can prove, measured in under eight minutes, with one table at the end.

``__main__`` decides what is run; ``parts`` lists the checks, each a file of its own that returns verdicts;
``parts`` runs each in a process of its own, so that a lost device or a check that hangs costs no other
check. ``--rehearse`` runs all of them on a device that is not there (``rehearsal``), with small models: that
shows that they run to their ends, and says nothing about a GPU.
"""
