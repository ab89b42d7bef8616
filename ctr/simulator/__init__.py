"""A simulated ad system: logs with the true click probabilities; begin with ``simulate`` of ``simulate.py``.

``world.py`` draws the world, its queries and ads; ``auction.py`` serves a day of them by a policy, and has the
moving interests of users; ``features.py`` has the logged part. ``simulate.py`` writes logs and
``events.py`` raw events. ``config.py`` has the settings.
"""
