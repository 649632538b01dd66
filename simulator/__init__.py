"""Virtual time: the unchanged scheduler and the unchanged worker cores on a seeded network.

Only the clock, the network and the devices' durations are simulated; every choice is made by the code
that makes it live.
"""
