"""A simulated ad system: logs with the true click probabilities; begin with ``simulate`` of ``simulate.py``.

``world.py`` draws the world, its queries and ads; ``auction.py`` serves a day of them with a policy, and models the
moving interests of users; ``features.py`` computes the logged columns. ``simulate.py`` writes logs and
``events.py`` raw events. ``config.py`` has the settings.
"""
