"""Search for the architecture that is most accurate at a target cost (``ctr search``, FF 3.2).

Begin with ``run``, which runs a search from its file to its result. ``space`` has the decisions and their choices about
parts of an ``architecture``, ``problem`` the cost of a candidate, in counted operations. Candidates are masks of one
network (``supernet``, ``shared_weights``, ``masks``); a ``controller`` learns which of them to prefer. ``record`` has
the files that store the result, ``report`` writes the report.
"""
