"""A clairvoyant upper bound on goodput, for arrivals that are all known: no policy could do better.

``from mainspring.simulator.bound.dual import Fleet, Stream, goodput_bound``.
"""
