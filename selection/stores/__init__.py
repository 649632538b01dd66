"""States that outlive a gateway, and that several share: what to read and write, and how updates meet. Pure.

`records.py` says what a store is asked and what it holds, `journal.py` follows an application's states. The
stores themselves are in `gateway/stores/`.
"""
