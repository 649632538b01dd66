"""What no policy could beat: a clairvoyant upper bound on goodput, for arrivals that are all known.

``from mainspring.simulator.bound.dual import Fleet, Stream, goodput_bound``.
"""
