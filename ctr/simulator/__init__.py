"""A simulated ad system: logs with the true click probabilities; begin with ``simulate`` of ``simulate.py``.

``world.py`` draws the world, its queries and ads; ``auction.py`` serves a day of them by a policy, and has the
interests of users that move; ``features.py`` has what is logged of it. ``simulate.py`` writes logs and
``events.py`` raw events. ``config.py`` has the settings.
"""
