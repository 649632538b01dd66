"""A GPU that is not there, for rehearsals and tests: it records every call and plays it in virtual time.

``bindings`` is found by `mainspring.worker.engines.cuda.driver.choose_bindings` in every process of a
rehearsal, through its environment variable; ``driver`` is the device, ``rules`` what a real driver refuses,
``work`` what streams hold.
"""
