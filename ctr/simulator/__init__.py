"""A simulated ad system: logs whose true click probabilities are known; begin with ``simulate`` of ``simulate.py``.

``world.py`` draws the world, its queries and ads; ``interests.py`` the interests of users that move; ``auction.py``
serves a day of them by a policy; ``features.py`` has what is logged of it. ``simulate.py`` writes logs and
``events.py`` raw events. ``config.py`` has the settings.
"""
