"""A whole cluster in one thread by one seed: clients, gateways, controllers, workers as they are deployed.

Their cores and shells are unchanged, and what they say to one another is encoded and decoded. What a town
plays is time, connections, devices, and what goes wrong with them.
"""
